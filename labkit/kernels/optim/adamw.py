"""AdamW: one step for all parameters of a model, which lie in one flat buffer, in one launch.

Shapes  master, m, v (n,) float32: the parameters and the two moments, updated in place. gradients (n,): float32,
        float16 or bfloat16 (uint16). parameters (n,): the copies that the model computes with, one of the same types.
        decayed (n / 256, rounded up) uint8: which 256 elements decay; a tensor begins at a multiple of 256.
        rate, clip (1,) float32 and step (1,) int32 are on the device: a captured graph reads them at each launch
Work    some 20 flops an element; 24 bytes of state, and gradient and copy: 28 bytes in bfloat16
Source  Loshchilov, Hutter: Decoupled Weight Decay Regularization (2019), arXiv:1711.05101; llm.c, `adamw.cuh`

g = gradient * clip; m += (1 - beta1) * (g - m); v += (1 - beta2) * (g^2 - v);
master -= rate * (m / (1 - beta1^step) / (sqrt(v / (1 - beta2^step)) + eps) + decay * master).  step counts from 1.
"""

import math

import numpy as np
from numba import float32, int32, uint32

from labkit import cuda, u32
from labkit.device.lazy import kernel_factory
from labkit.kernels.arguments import aligned, check_array
from labkit.kernels.dtypes import float64_of
from labkit.kernels.eights import ACCESS
from labkit.kernels.elements import BFLOAT16, FLOAT32, Element, element_of
from labkit.kernels.op import rung

BLOCK = 256
SEGMENT = 256  # elements of a flag of `decayed`
BETAS, EPS, DECAY = (0.9, 0.999), 1e-8, 0.1
ZERO, ONE = float32(0.0), float32(1.0)


def adamw_reference(master, m, v, gradients, decayed, rate, step, clip, betas=BETAS, eps=EPS, decay=DECAY):
    """Return the new (master, m, v) in float64."""
    master, m, v, gradients = (float64_of(one) for one in (master, m, v, gradients))
    (beta1, beta2), count, decays = betas, int(step[0]), np.repeat(decayed, SEGMENT)[: len(master)] != 0
    g = gradients * float(clip[0])
    m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g**2
    update = m / (1 - beta1**count) / (np.sqrt(v / (1 - beta2**count)) + eps)
    return master - float(rate[0]) * (update + decay * decays * master), m, v


def make_update(betas: tuple[float, float], eps: float):
    """Two device functions: the bias corrections at a step, and an element's update."""
    LOG_BETA_1, LOG_BETA_2, EPSILON = float32(math.log(betas[0])), float32(math.log(betas[1])), float32(eps)
    GAIN_1, GAIN_2 = float32(1 - betas[0]), float32(1 - betas[1])

    @cuda.jit(device=True)
    def corrections(step):
        """(1 / (1 - beta1^step), 1 / (1 - beta2^step)), without the cancellation of 1 - 0.999."""
        count = float32(step)
        return -ONE / math.expm1(count * LOG_BETA_1), -ONE / math.expm1(count * LOG_BETA_2)

    @cuda.jit(device=True)
    def update(master, m, v, g, rate, shrink, correct_m, correct_v):
        """The new (master, m, v). shrink: rate * decay, or 0."""
        m += GAIN_1 * (g - m)
        v += GAIN_2 * (g * g - v)
        change = m * correct_m / (math.sqrt(v * correct_v) + EPSILON)
        return master - rate * change - shrink * master, m, v

    return corrections, update


@kernel_factory
def make_adamw_per_thread(gradient: Element, parameter: Element, betas: tuple[float, float], eps: float):
    load, store, (corrections, update) = ACCESS[gradient].load, ACCESS[parameter].store, make_update(betas, eps)

    @cuda.jit
    def adamw_per_thread_kernel(master, m, v, gradients, decayed, rate, step, clip, decay,
                                new_master, new_m, new_v, parameters):
        i = u32.grid(1)
        if i < u32.size(master):
            correct_m, correct_v = corrections(step[0])
            shrink = rate[0] * decay if decayed[i // SEGMENT] != 0 else ZERO
            value, first, second = update(master[i], m[i], v[i], load(gradients, i) * clip[0], rate[0], shrink,
                                          correct_m, correct_v)
            new_master[i], new_m[i], new_v[i] = value, first, second
            store(parameters, i, value)

    return adamw_per_thread_kernel


@kernel_factory
def make_adamw(gradient: Element, parameter: Element, betas: tuple[float, float], eps: float):
    corrections, update = make_update(betas, eps)
    (load, _), (load_singles, _) = ACCESS[FLOAT32].eight, ACCESS[FLOAT32].singles
    (_, store), (_, store_singles) = ACCESS[FLOAT32].eight, ACCESS[FLOAT32].singles
    load_gradient, load_gradient_singles = ACCESS[gradient].eight[0], ACCESS[gradient].singles[0]
    store_parameter, store_parameter_singles = ACCESS[parameter].eight[1], ACCESS[parameter].singles[1]

    @cuda.jit(launch_bounds=BLOCK)
    def adamw_vectorized_kernel(master, m, v, gradients, decayed, rate, step, clip, decay,
                                new_master, new_m, new_v, parameters):
        i, n = 8 * u32.grid(1), u32.size(master)
        if i < n:
            p, first = cuda.local.array(8, float32), cuda.local.array(8, float32)
            second, g = cuda.local.array(8, float32), cuda.local.array(8, float32)
            remaining = int32(n - i)
            if remaining >= int32(8):
                load(p, 0, master, i, remaining)
                load(first, 0, m, i, remaining)
                load(second, 0, v, i, remaining)
                load_gradient(g, 0, gradients, i, remaining)
            else:
                load_singles(p, 0, master, i, remaining)
                load_singles(first, 0, m, i, remaining)
                load_singles(second, 0, v, i, remaining)
                load_gradient_singles(g, 0, gradients, i, remaining)
            correct_m, correct_v = corrections(step[0])
            shrink = rate[0] * decay if decayed[i // SEGMENT] != 0 else ZERO
            for e in range(8):
                p[e], first[e], second[e] = update(p[e], first[e], second[e], g[e] * clip[0], rate[0], shrink,
                                                   correct_m, correct_v)
            if remaining >= int32(8):
                store(new_master, i, remaining, p, 0)
                store(new_m, i, remaining, first, 0)
                store(new_v, i, remaining, second, 0)
                store_parameter(parameters, i, remaining, p, 0)
            else:
                store_singles(new_master, i, remaining, p, 0)
                store_singles(new_m, i, remaining, first, 0)
                store_singles(new_v, i, remaining, second, 0)
                store_parameter_singles(parameters, i, remaining, p, 0)

    return adamw_vectorized_kernel


@rung(kernel=make_adamw_per_thread(BFLOAT16, BFLOAT16, BETAS, EPS), idea="one parameter a thread")
def adamw_per_thread(master, m, v, gradients, parameters, decayed, rate, step, clip, betas=BETAS, eps=EPS, decay=DECAY,
                     out=None, stream=0):
    """One thread updates one parameter."""
    _launch(make_adamw_per_thread, 1, master, m, v, gradients, parameters, decayed, rate, step, clip, betas, eps, decay,
            out, stream)


@rung(kernel=make_adamw(BFLOAT16, BFLOAT16, BETAS, EPS), idea="eight parameters a thread, 128 bits at a time")
def adamw_vectorized(master, m, v, gradients, parameters, decayed, rate, step, clip, betas=BETAS, eps=EPS, decay=DECAY,
                     out=None, stream=0):
    """As per_thread, but a thread updates eight neighbours. A view that does not begin at a multiple of 16 bytes takes
    per_thread's kernel."""
    adamw(master, m, v, gradients, parameters, decayed, rate, step, clip, betas=betas, eps=eps, decay=decay, out=out,
          stream=stream)


def adamw(master, m, v, gradients, parameters, decayed, rate, step, clip, betas=BETAS, eps=EPS, decay=DECAY, out=None,
          stream=0):
    """The launcher to use: adamw_vectorized. betas and eps are constants of the kernel: one is compiled for each.
    out: (3, n) float32 for the new master, m and v; if left out, they are updated in place."""
    arrays = (master, m, v, gradients, parameters) + (() if out is None else (out[0], out[1], out[2]))
    vectorized = all(hasattr(one, "is_c_contiguous") and aligned(one) for one in arrays)
    make, per_thread = (make_adamw, 8) if vectorized else (make_adamw_per_thread, 1)
    _launch(make, per_thread, master, m, v, gradients, parameters, decayed, rate, step, clip, betas, eps, decay, out,
            stream)


def _launch(make, per_thread, master, m, v, gradients, parameters, decayed, rate, step, clip, betas, eps, decay, out,
            stream) -> None:
    check_array("master", master, ndim=1)
    for name, array in (("m", m), ("v", v)):
        check_array(name, array, shape=master.shape)
    gradient, parameter = element_of("gradients", gradients), element_of("parameters", parameters)
    check_array("gradients", gradients, shape=master.shape, dtype=gradient.dtype)
    check_array("parameters", parameters, shape=master.shape, dtype=parameter.dtype)
    check_array("decayed", decayed, shape=(-(-master.shape[0] // SEGMENT),), dtype=np.uint8)
    check_array("rate", rate, shape=(1,))
    check_array("step", step, shape=(1,), dtype=np.int32)
    check_array("clip", clip, shape=(1,))
    if not all(0 < beta < 1 for beta in betas):
        raise ValueError(f"betas is {tuple(betas)}; each must be above 0 and below 1")
    if not eps > 0:
        raise ValueError(f"eps is {eps}; it must be above 0")
    if out is not None:
        check_array("out", out, shape=(3, *master.shape))
    new = (master, m, v) if out is None else (out[0], out[1], out[2])
    grid = -(-master.shape[0] // (per_thread * BLOCK))
    make(gradient, parameter, tuple(betas), eps)[grid, BLOCK, stream](
        master, m, v, gradients, decayed, rate, step, clip, np.float32(decay), *new, parameters)


@kernel_factory
def make_advance():
    @cuda.jit
    def advance_kernel(step, rates, rate):
        if u32.grid(1) == 0:
            step[0] += int32(1)
            rate[0] = rates[min(uint32(step[0] - int32(1)), u32.size(rates) - 1)]

    return advance_kernel


def advance(step, rates, rate, stream=0):
    """step += 1, and rate = rates[step - 1], of a schedule (steps,) float32 on the device; after its end the last one.
    The launch before adamw in a captured graph."""
    check_array("step", step, shape=(1,), dtype=np.int32)
    check_array("rates", rates, ndim=1)
    check_array("rate", rate, shape=(1,))
    make_advance()[1, 32, stream](step, rates, rate)
