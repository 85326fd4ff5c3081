"""layernorm_backward, rmsnorm_backward and rmsnorm_backward_bf16: inputs, sizes, tolerances, work and baselines of the
rungs in labkit.kernels.norm.backward. out holds the rows of dx, then dweight, then, for LayerNorm, dbias."""

import numpy as np

from labkit.kernels.baselines import Baseline
from labkit.kernels.elements import BFLOAT16, FLOAT32, Element
from labkit.kernels.norm import backward
from labkit.kernels.norm.backward import norm_backward_reference
from labkit.kernels.norm.rows import EPSILON
from labkit.kernels.op import Op, Work, rungs_of, sizes, uniform
from labkit.kernels.tolerance import EPS32


def _reference(x, weight, dout, centred: bool):
    dx, *sums = norm_backward_reference(x, weight, dout, centred=centred)
    return np.concatenate([dx, np.stack(sums[: 1 + centred])])


def tolerance_of(element: Element, centred: bool):
    """Sums over a row have C terms and those over the columns R: errors grow like the roots. The error of a mean is
    relative to the mean of |x|, and so are those of all normalised values."""
    def tolerance(x, weight, dout):
        rows, columns = x.shape
        spread = x - x.mean(axis=1, keepdims=True) * centred
        rstd = 1 / np.sqrt((spread**2).mean(axis=1, keepdims=True) + EPSILON)
        g, xhat = np.abs(dout * weight), (np.abs(x).mean(axis=1, keepdims=True) * centred + np.abs(spread)) * rstd
        dx = rstd * (g + g.mean(axis=1, keepdims=True) + xhat * (g * xhat).mean(axis=1, keepdims=True))
        sums = [(np.abs(dout) * xhat).sum(axis=0), np.abs(dout).sum(axis=0)]
        of_sums = EPS32 * (2 * np.sqrt(columns) + 2 * np.sqrt(rows) + 8) * np.stack(sums[: 1 + centred])
        return (np.concatenate([EPS32 * (4 * np.sqrt(columns) + 16) * dx, of_sums])
                + element.rounding_error(_reference(x, weight, dout, centred)))

    return tolerance


def _parts(out, rows: int):
    """dx, dweight and, for LayerNorm, dbias: views of out."""
    return out[:rows], *(out[row] for row in range(rows, out.shape[0]))


def norm_backward_op(name: str, element: Element, centred: bool, timed: dict, also: tuple[dict, ...] = ()):
    cast, itemsize = element.array_of, element.dtype.itemsize
    title = ("LayerNorm" if centred else "RMSNorm") + f", in {element.name}" * (element != FLOAT32)

    def torch_backward(torch, x, weight, dout, out):
        if centred:
            mean, variance = x.mean(dim=1, keepdim=True), x.var(dim=1, keepdim=True, correction=0)
            return torch.ops.aten.native_layer_norm_backward(
                dout, x, weight.shape, mean, torch.rsqrt(variance + EPSILON), weight, weight, [True] * 3)
        rstd = torch.rsqrt(x.float().square().mean(dim=1, keepdim=True) + EPSILON)
        xhat, g = x.float() * rstd, (dout * weight).float()
        dx = rstd * (g - xhat * (g * xhat).mean(dim=1, keepdim=True))
        return dx.to(x.dtype), (dout * xhat).sum(dim=0).to(x.dtype)

    return Op(
        name,
        title=f"Gradients of {title}",
        formula="dx = rstd * (g - mean(g) - xhat * mean(g * xhat)), g = dout * weight; dweight = sum of dout * xhat"
                + "; dbias = sum of dout" * centred,
        reference=lambda x, weight, dout: _reference(x, weight, dout, centred),
        rungs=tuple(one.called(one.__name__, lambda x, weight, dout, out, stream=0, launch=one.launcher:
                               launch(x, weight, dout, *_parts(out, x.shape[0]), stream=stream))
                    for one in rungs_of(backward, "layernorm" if centred else "rmsnorm")),
        inputs=lambda rng, R, C: (cast(uniform(rng, R, C) + np.float32(0.75)), cast(uniform(rng, C)),
                                  cast(uniform(rng, R, C))),
        shape=lambda R, C: (R + 1 + centred, C),
        awkward=sizes("R C", (1, 1), (3, 5), (29, 264), (33, 768), (5, 1021), (3, 2048)),
        tolerance=tolerance_of(element, centred),
        by_row=(),
        work=Work(
            flops=lambda R, C: 15 * R * C,
            bytes=lambda R, C: 3 * itemsize * R * C,
            timed_gpu=timed,
            timed_cpu={"R": 64, "C": 256},
            also_gpu=also,
        ),
        baselines=(Baseline("PyTorch", "torch", torch_backward, note="statistics, then the gradients"),),
        dtype=element.dtype,
    )


LAYERNORM_BACKWARD = norm_backward_op("layernorm_backward", FLOAT32, True, {"R": 8192, "C": 768},
                                      ({"R": 16384, "C": 2048},))
RMSNORM_BACKWARD = norm_backward_op("rmsnorm_backward", FLOAT32, False, {"R": 16384, "C": 2048})
RMSNORM_BACKWARD_BF16 = norm_backward_op("rmsnorm_backward_bf16", BFLOAT16, False, {"R": 16384, "C": 2048})
