"""Messages between the grader and the isolated side: four bytes with the length of a JSON head, the head, raw arrays.

Nothing here trusts its peer: lengths, types, shapes and nesting are checked before anything is allocated, and no value
is ever unpickled.
"""

import json
import math
import select
import struct
import time

import numpy as np

MAX_HEAD = 1 << 20
MAX_BYTES = 256 << 20  # of all arrays of a message
FINDINGS = ("races", "out_of_bounds_writes", "out_of_bounds_reads", "divergent_barriers", "uninitialized_reads")
DTYPES = {np.dtype(name).str: np.dtype(name) for name in (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64",
    "complex64", "complex128")}


class WireError(Exception):
    """The peer has closed the connection, or sent an invalid message."""


class Late(WireError):
    """No whole message arrived in time."""


def pack(value, blobs: list):
    """`value` as JSON; arrays become references into `blobs`. TypeError for what cannot be sent."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return {"int": str(value)}
    if isinstance(value, float):
        return {"float": value.hex()}
    if isinstance(value, bytes):
        blobs.append(value)
        return {"bytes": len(value)}
    if isinstance(value, tuple | list):
        return {type(value).__name__: [pack(each, blobs) for each in value]}
    if isinstance(value, np.ndarray | np.generic):
        array = np.asarray(value)
        if array.dtype.str not in DTYPES:
            raise TypeError(f"an array of {array.dtype} cannot be sent")
        order = "F" if array.flags.f_contiguous and not array.flags.c_contiguous else "C"
        blobs.append(array.tobytes(order))
        return {"array": [array.dtype.str, list(array.shape), isinstance(value, np.generic), order]}
    raise TypeError(f"{type(value).__name__} cannot be sent")


def unpack(value, read):
    """What pack packed. read(size) gives the next bytes of the arrays."""
    if value is None or isinstance(value, bool | str):
        return value
    if not isinstance(value, dict) or len(value) != 1:
        raise WireError("no value")
    (kind, payload), = value.items()
    if kind == "int" and isinstance(payload, str) and len(payload) < 100:
        return int(payload)
    if kind == "float" and isinstance(payload, str) and len(payload) < 100:
        return float.fromhex(payload)
    if kind == "bytes" and type(payload) is int and 0 <= payload <= MAX_BYTES:
        return bytes(read(payload))
    if kind in ("tuple", "list") and isinstance(payload, list):
        return {"tuple": tuple, "list": list}[kind](unpack(each, read) for each in payload)
    if kind == "array" and isinstance(payload, list) and len(payload) == 4:
        name, shape, scalar, order = payload
        lengths = isinstance(shape, list) and len(shape) <= 16 and all(
            type(length) is int and 0 <= length < 1 << 40 for length in shape)
        if type(name) is not str or name not in DTYPES or order not in ("C", "F") or not lengths:
            raise WireError("no array")
        array = np.frombuffer(read(math.prod(shape) * DTYPES[name].itemsize), DTYPES[name])
        array = array.reshape(shape, order=order)
        return array[()] if scalar and not shape else array.copy(order)
    raise WireError("no value")


def encode(head: dict, values: dict) -> bytes:
    """head: plain JSON. values: name -> a number, a text, bytes, an array, a tuple of them."""
    blobs: list[bytes] = []
    packed = {name: pack(value, blobs) for name, value in values.items()}
    size = sum(map(len, blobs))
    if size > MAX_BYTES:
        raise TypeError(f"{size >> 20} MiB are too much to send")
    text = json.dumps({"head": head, "values": packed, "bytes": size}).encode()
    if len(text) > MAX_HEAD:
        raise TypeError("too much text to send")
    return b"".join([struct.pack("<I", len(text)), text, *blobs])


def decode(text: bytes, blob: bytes) -> tuple[dict, dict]:
    """(head, values) of a message, of which any byte may be hostile."""
    offset = 0

    def read(size: int) -> bytes:
        nonlocal offset
        if size < 0 or offset + size > len(blob):
            raise WireError("an array is longer than its message")
        offset += size
        return blob[offset - size : offset]

    try:
        message = json.loads(text)
        values = {str(name): unpack(value, read) for name, value in message["values"].items()}
        head = message["head"]
        if not isinstance(head, dict):
            raise WireError("no head")
        return head, values
    except WireError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError, MemoryError) as error:
        raise WireError(f"no message: {type(error).__name__}") from None


def _blob_size(text: bytes) -> int:
    try:
        size = json.loads(text)["bytes"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise WireError("no message") from None
    if type(size) is not int or not 0 <= size <= MAX_BYTES:
        raise WireError("a message of this length is not taken")
    return size


def receive(connection, deadline: float | None = None) -> tuple[dict, dict]:
    """The next message. Late after the deadline (time.monotonic()), WireError where there is none."""
    (length,) = struct.unpack("<I", _read(connection, 4, deadline))
    if length > MAX_HEAD:
        raise WireError("a head of this length is not taken")
    text = _read(connection, length, deadline)
    return decode(text, _read(connection, _blob_size(text), deadline))


def line(connection, deadline: float | None = None) -> bytes:
    """Return the next line of plain text, as it comes before and between messages."""
    data = b""
    while not data.endswith(b"\n"):
        data += _read(connection, 1, deadline)
    return data


def _read(connection, size: int, deadline: float | None) -> bytes:
    parts, remaining = [], size
    while remaining:
        if deadline is not None:
            # In short waits, so that an exception set from another thread (host_limit) is raised soon.
            while not select.select([connection], [], [], 0.1)[0]:
                if time.monotonic() > deadline:
                    raise Late("no answer in time")
        try:
            part = connection.recv(min(remaining, 1 << 20))
        except OSError:
            part = b""
        if not part:
            raise WireError("the connection is closed")
        parts.append(part)
        remaining -= len(part)
        if deadline is not None and time.monotonic() > deadline:
            raise Late("no answer in time")
    return b"".join(parts)


def send(connection, head: dict, values: dict | None = None, deadline: float | None = None) -> None:
    data = memoryview(encode(head, values or {}))
    try:
        while data:
            if deadline is not None:
                while not select.select([], [connection], [], 0.1)[1]:
                    if time.monotonic() > deadline:
                        raise Late("what was sent is not read")
                data = data[connection.send(data[: 1 << 16]) :]
            else:
                data = data[connection.send(data) :]
    except OSError:
        raise WireError("the connection is closed") from None
