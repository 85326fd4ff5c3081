"""ldmatrix and mma.sync, for all warps of a block at once. Each is a function of its own, which kernels share.

active[w]: a bit for each lane of warp w that is here; arrays hold an entry for each lane of whole warps.
"""

import numpy as np

from labkit.simt.runtime.fault_record import WARP_PART, fail
from labkit.simt.runtime.ptx_memory import peek16, peek32
from labkit.simt.runtime.ptx_values import bits_float, pack_half2, unpack_bf162, unpack_half2
from labkit.simt.runtime.shared_function import called_function

_WHOLE = np.uint32(0xFFFFFFFF)


@called_function
def whole_warps(active, padded, b, err, site):
    """Fault unless all the lanes of a warp are here, or none."""
    for w in range(active.size):
        bits = active[w]
        if bits != 0 and bits != _WHOLE:
            lane = 0
            while (bits >> np.uint32(lane)) & np.uint32(1) == 0:
                lane += 1
            fail(WARP_PART, err, w * 32 % padded + lane, b + w * 32 // padded, site, bits, 0, 0)


@called_function
def ldmatrix(addresses, active, r0, r1, r2, r3, count, trans):
    for w in range(active.size):
        if active[w] == 0:
            continue
        for m in range(count):
            rows = w * 32 + 8 * m
            for lane in range(32):
                g, q = lane >> 2, lane & 3
                if trans:
                    word = peek16(addresses[rows + 2 * q] + 2 * g)
                    word |= peek16(addresses[rows + 2 * q + 1] + 2 * g) << np.uint32(16)
                else:
                    word = peek32(addresses[rows + g] + 4 * q)
                target = r0 if m == 0 else r1 if m == 1 else r2 if m == 2 else r3
                target[w * 32 + lane] = word


@called_function
def unpack_word(word, kind):
    """The two numbers in a word of A or B: kind 0 float16, 1 bfloat16."""
    return unpack_half2(word) if kind == 0 else unpack_bf162(word)


@called_function
def load_operands(kind, start, a0, a1, a2, a3, b0, b1, a, b):
    """The fragments of one warp -> a (16 x k) and b (k x 8), k = 16; for tf32 (kind 2) and for float16 without a2, a3
    and b1 (kind 3) k = 8."""
    for lane in range(32):
        t = start + lane
        g, q = lane >> 2, lane & 3
        if kind == 2:
            mask = np.uint32(0xFFFFE000)
            a[g, q], a[g + 8, q] = bits_float(a0[t] & mask), bits_float(a1[t] & mask)
            a[g, q + 4], a[g + 8, q + 4] = bits_float(a2[t] & mask), bits_float(a3[t] & mask)
            b[q, g], b[q + 4, g] = bits_float(b0[t] & mask), bits_float(b1[t] & mask)
        elif kind == 3:
            a[g, 2 * q], a[g, 2 * q + 1] = unpack_half2(a0[t])
            a[g + 8, 2 * q], a[g + 8, 2 * q + 1] = unpack_half2(a1[t])
            b[2 * q, g], b[2 * q + 1, g] = unpack_half2(b0[t])
        else:
            a[g, 2 * q], a[g, 2 * q + 1] = unpack_word(a0[t], kind)
            a[g + 8, 2 * q], a[g + 8, 2 * q + 1] = unpack_word(a1[t], kind)
            a[g, 2 * q + 8], a[g, 2 * q + 9] = unpack_word(a2[t], kind)
            a[g + 8, 2 * q + 8], a[g + 8, 2 * q + 9] = unpack_word(a3[t], kind)
            b[2 * q, g], b[2 * q + 1, g] = unpack_word(b0[t], kind)
            b[2 * q + 8, g], b[2 * q + 9, g] = unpack_word(b1[t], kind)


@called_function
def multiply(a, b, c, depth):
    for row in range(16):
        for k in range(depth):
            x = a[row, k]
            for col in range(8):
                c[row, col] += x * b[k, col]


@called_function
def mma_f32(kind, active, a0, a1, a2, a3, b0, b1, c0, c1, c2, c3):
    """D = A @ B + C for every warp that is here; D is left in c0 to c3."""
    a, b = np.empty((16, 16), np.float32), np.empty((16, 8), np.float32)
    c = np.empty((16, 8), np.float32)
    depth = 8 if kind >= 2 else 16
    for w in range(active.size):
        if active[w] == 0:
            continue
        load_operands(kind, w * 32, a0, a1, a2, a3, b0, b1, a, b)
        for lane in range(32):
            t, g, q = w * 32 + lane, lane >> 2, lane & 3
            c[g, 2 * q], c[g, 2 * q + 1] = c0[t], c1[t]
            c[g + 8, 2 * q], c[g + 8, 2 * q + 1] = c2[t], c3[t]
        multiply(a, b, c, depth)
        for lane in range(32):
            t, g, q = w * 32 + lane, lane >> 2, lane & 3
            c0[t], c1[t] = c[g, 2 * q], c[g, 2 * q + 1]
            c2[t], c3[t] = c[g + 8, 2 * q], c[g + 8, 2 * q + 1]


@called_function
def mma_f16(active, a0, a1, a2, a3, b0, b1, c0, c1):
    """The same with float16 sums: C and D are two words for each lane, D rounded once."""
    a, b = np.empty((16, 16), np.float32), np.empty((16, 8), np.float32)
    c = np.empty((16, 8), np.float32)
    for w in range(active.size):
        if active[w] == 0:
            continue
        load_operands(0, w * 32, a0, a1, a2, a3, b0, b1, a, b)
        for lane in range(32):
            t, g, q = w * 32 + lane, lane >> 2, lane & 3
            c[g, 2 * q], c[g, 2 * q + 1] = unpack_half2(c0[t])
            c[g + 8, 2 * q], c[g + 8, 2 * q + 1] = unpack_half2(c1[t])
        multiply(a, b, c, 16)
        for lane in range(32):
            t, g, q = w * 32 + lane, lane >> 2, lane & 3
            c0[t] = pack_half2(c[g, 2 * q], c[g, 2 * q + 1])
            c1[t] = pack_half2(c[g + 8, 2 * q], c[g + 8, 2 * q + 1])
