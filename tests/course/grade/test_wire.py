"""Messages: what is sent arrives, and no byte from the other side is believed."""

import contextlib
import json
import socket
import struct
import time

import numpy as np
import pytest

from labkit.course.grade import wire


def sent_and_received(values: dict) -> dict:
    one, other = socket.socketpair()
    with one, other:
        wire.send(one, {}, values)
        return wire.receive(other, time.monotonic() + 5)[1]


@pytest.mark.parametrize("value", [None, True, 3, -(1 << 70), 0.1, float("inf"), "text", (1, (2.5, "x")), [1, None],
                                   b"", b"bytes\x00", [b"two", b""]])
def test_plain_values_arrive_as_they_are(value):
    got = sent_and_received({"v": value})["v"]
    assert got == value and type(got) is type(value)


@pytest.mark.parametrize("array", [
    np.arange(6, dtype=np.float32).reshape(2, 3), np.asfortranarray(np.arange(6.0).reshape(2, 3)), np.zeros((0, 3)),
    np.float16(1.5), np.array(3, np.uint8), np.arange(12)[::2]], ids=repr)
def test_arrays_keep_type_shape_and_order(array):
    got = sent_and_received({"v": array})["v"]
    assert type(got) is type(array) and got.dtype == array.dtype and np.array_equal(got, array)
    assert got.flags.f_contiguous == (np.ascontiguousarray(array) if array.ndim == 1 else array).flags.f_contiguous


def test_nan_keeps_its_bits():
    bits = np.array([0x7FC00001, 0xFFC12345, 0x7F800001], np.uint32)
    assert np.array_equal(sent_and_received({"v": bits.view(np.float32)})["v"].view(np.uint32), bits)


@pytest.mark.parametrize("value", [
    object(), np.array([print], object), np.zeros(1, "i4,i4"), {1: 2}, bytearray(b"bytes")])
def test_what_is_no_number_is_not_sent(value):
    with pytest.raises(TypeError, match="cannot be sent"):
        wire.encode({}, {"v": value})


def message(packed, blob: bytes = b"", size: int | None = None) -> bytes:
    text = json.dumps({"head": {}, "values": {"v": packed}, "bytes": len(blob) if size is None else size}).encode()
    return struct.pack("<I", len(text)) + text + blob


HOSTILE = {
    "no JSON": struct.pack("<I", 3) + b"abc",
    "deep JSON": struct.pack("<I", 200_000) + b"[" * 200_000,
    "a long head": struct.pack("<I", 1 << 31),
    "a huge array": message({"array": ["<f4", [1 << 39, 1 << 39], False, "C"]}),
    "more than came": message({"array": ["<f4", [100], False, "C"]}, b"1234"),
    "a negative shape": message({"array": ["<f4", [-1], False, "C"]}, b"1234"),
    "objects": message({"array": ["|O", [1], False, "C"]}, b"12345678"),
    "an unhashable type": message({"array": [["<f4"], [1], False, "C"]}, b"1234"),
    "an unknown order": message({"array": ["<f4", [1], False, ["K"]]}, b"1234"),
    "too many dimensions": message({"array": ["<f4", [1] * 40, False, "C"]}, b"1234"),
    "too many bytes": message(None, b"", 1 << 40),
    "negative bytes": message(None, b"", -1),
    "no value": message({"eval": "1"}),
    "no head": struct.pack("<I", 2) + b"{}",
    "a list": struct.pack("<I", 2) + b"[]",
    "a long number": message({"int": "9" * 5000}),
    "no number": message({"float": "nonsense"}),
    "nothing": b"",
    "half": message(None)[:9],
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_no_message_is_a_wire_error(kind):
    one, other = socket.socketpair()
    with other:
        with one:
            one.settimeout(0.5)
            with contextlib.suppress(TimeoutError):  # the other side reads no more of it
                one.sendall(HOSTILE[kind])
        with pytest.raises(wire.WireError):
            wire.receive(other, time.monotonic() + 5)


def test_silence_is_late():
    one, other = socket.socketpair()
    with one, other, pytest.raises(wire.Late):
        wire.receive(other, time.monotonic() + 0.05)
