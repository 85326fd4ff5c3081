"""Matrices in fragments and in shared memory: mma.sync, ldmatrix, the tiles of wgmma."""

import functools

import numpy as np

from labkit.simt.ptx import SWIZZLES
from labkit.simt.ptx_interpreted.values import from_bf16, from_tf32
from labkit.simt.typed_numbers import Uint32

LAYOUT_BYTES = {mode: nbytes for nbytes, mode in SWIZZLES.items()}
LANE = np.arange(32)
_G, _Q = LANE // 4, LANE % 4
# register r, half h of a lane -> (row, column); one row of the tables for each lane
_A16 = [(_G + 8 * (r % 2), 2 * _Q + 8 * (r // 2)) for r in range(4)]
_B16 = [(2 * _Q + 8 * r, _G) for r in range(2)]
_C = [(_G + 8 * (j // 2), 2 * _Q + j % 2) for j in range(4)]


def words_of(registers):
    return np.array([int(x) & 0xFFFFFFFF for x in registers], np.uint32)


def _unpack_words(words, kind):
    """The (low, high) float16 values of the words of A or B, as float32."""
    parts = [(words & 0xFFFF).astype(np.uint16), (words >> 16).astype(np.uint16)]
    return [from_bf16(p) if kind == "bf16" else p.view(np.float16).astype(np.float32) for p in parts]


def mma(name, lanes):
    """The results of mma.sync for the 32 lanes of a warp, each given as a tuple of its registers."""
    columns = list(zip(*lanes, strict=True))
    count = 2 if name == "mma_m16n8k8_f32_f16" else 4  # registers of A; B has half of that
    words = [words_of(c) for c in columns[: count + count // 2]]
    columns = columns[len(words) :]
    c = np.empty((16, 8), np.float32)
    f16_accumulators = name == "mma_m16n8k16_f16_f16"
    if f16_accumulators:
        for r, word in enumerate(words_of(x) for x in columns):
            row, col = _C[2 * r]
            c[row, col], c[row, col + 1] = _unpack_words(word, "f16")
    else:
        for (row, col), values in zip(_C, columns, strict=True):
            c[row, col] = np.array(values, np.float32)
    if name.endswith("tf32"):
        a, b = np.empty((16, 8), np.float32), np.empty((8, 8), np.float32)
        tf32_values = [from_tf32(w) for w in words]
        for r in range(4):
            a[_G + 8 * (r % 2), _Q + 4 * (r // 2)] = tf32_values[r]
        for r in range(2):
            b[_Q + 4 * r, _G] = tf32_values[4 + r]
    else:
        kind = "bf16" if name.endswith("bf16") else "f16"
        a, b = np.empty((16, 4 * count), np.float32), np.empty((4 * count, 8), np.float32)
        for (row, k), word in zip(_A16[:count], words[:count], strict=True):
            a[row, k], a[row, k + 1] = _unpack_words(word, kind)
        for (k, col), word in zip(_B16[: count // 2], words[count:], strict=True):
            b[k, col], b[k + 1, col] = _unpack_words(word, kind)
    for k in range(a.shape[1]):  # in the order of the compiled form: the same bits
        c += a[:, k : k + 1] * b[k]
    if f16_accumulators:
        d = c.astype(np.float16).view(np.uint16).astype(np.uint32)
        words = [d[row, col] | d[row, col + 1] << 16 for row, col in _C[::2]]
        return list(zip(*(map(Uint32, w.tolist()) for w in words), strict=True))
    return list(zip(*(c[row, col] for row, col in _C), strict=True))


def ldmatrix(rows, count, trans):
    """The registers of 32 lanes; rows: (8 * count, 8) uint16, the rows that the lanes named."""
    out = []
    for m in range(count):
        matrix = rows[8 * m : 8 * m + 8].astype(np.uint32)
        if trans:
            matrix = matrix.T
        words = matrix[_G, 2 * _Q] | matrix[_G, 2 * _Q + 1] << 16
        out.append(map(Uint32, words.tolist()))
    return list(zip(*out, strict=True))


def swizzled(addresses, nbytes):
    """Addresses in a tile with this swizzle (0, 32, 64 or 128 bytes): chunks of 16 bytes are exchanged in a row."""
    if not nbytes:
        return addresses
    return addresses ^ ((addresses >> 3) & (nbytes - 16))


@functools.lru_cache(256)
def tile_offsets(rows, leading, stride, nbytes, mn_major, itemsize=2):
    """Where element (row, k) of a tile of rows x 16 float16 values lies, in bytes from its start, before the swizzle.
    itemsize: 4 for rows x 8 float32 values, 1 for rows x 32 of E4M3, both K-major.

    Source: PTX ISA, "Asynchronous Warpgroup Level Matrix Shared Memory Layout".
    """
    row, k = np.arange(rows)[:, None], np.arange(32 // itemsize)
    if not nbytes:
        blocks = (row // 8) * stride + k * itemsize // 16 * leading
        return blocks + ((k % 8) * 16 + (row % 8) * 2 if mn_major else (row % 8) * 16 + k * itemsize % 16)
    if mn_major:
        columns = nbytes // 2
        return (row // columns) * leading + (k // 8) * stride + (k % 8) * nbytes + (row % columns) * 2
    return (row // 8) * stride + (row % 8) * nbytes + k * itemsize


@functools.lru_cache(16)
def accumulator_positions(columns):
    """(rows, columns) of the elements that the 128 threads of a warpgroup hold: (128, columns / 2) each."""
    t, j = np.arange(128)[:, None], np.arange(columns // 2)
    row = 16 * (t // 32) + t % 32 // 4 + 8 * (j // 2 % 2)
    return np.broadcast_to(row, (128, columns // 2)), 8 * (j // 4) + 2 * (t % 4) + j % 2


def a_of_registers(name, lanes):
    """The first factor of a wgmma, 64 x 16 (x 8 in TF32) in float32, of the four words of each of 128 threads."""
    a = np.empty((64, 8 if "_tf32" in name else 16), np.float32)
    for warp in range(4):
        words = [words_of(column) for column in zip(*lanes[32 * warp : 32 * warp + 32], strict=True)]
        if "_tf32" in name:
            for r, word in enumerate(words):
                a[16 * warp + _G + 8 * (r % 2), _Q + 4 * (r // 2)] = from_tf32(word)
            continue
        for (row, k), word in zip(_A16, words, strict=True):
            low, high = _unpack_words(word, "bf16" if "_bf16" in name else "f16")
            a[16 * warp + row, k], a[16 * warp + row, k + 1] = low, high
    return a
