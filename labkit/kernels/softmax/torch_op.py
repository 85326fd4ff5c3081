"""labkit's masked softmax as an operator of PyTorch: a Numba kernel on PyTorch's current stream, with a derivative.

    from labkit.kernels.softmax.torch_op import masked_softmax
    p = masked_softmax(scores, scale=0.125, causal=True)     # scores (B, S, S) or (B, H, S, S), float32, on a GPU

torch.compile and CUDA graphs take it as they take PyTorch's own. Needs PyTorch and a GPU.
"""

import torch

from labkit import cuda
from labkit.kernels.softmax.masked import SCALE, masked_softmax_single_read


@torch.library.custom_op("labkit::masked_softmax", mutates_args=(), device_types="cuda")
def masked_softmax(scores: torch.Tensor, scale: float = SCALE, causal: bool = False,
                   lengths: torch.Tensor | None = None) -> torch.Tensor:
    """softmax(scale * scores + mask) along the last axis. lengths (B,) int32: how many keys each sequence has."""
    scores = scores.detach().contiguous()
    out = torch.empty_like(scores)
    flat = (-1, *scores.shape[-2:])
    # PyTorch queues its work on a stream of its own choice; a kernel on another one might start too early.
    stream = cuda.external_stream(torch.cuda.current_stream(scores.device).cuda_stream)
    masked_softmax_single_read(
        cuda.as_cuda_array(scores.view(flat)), cuda.as_cuda_array(out.view(flat)),
        None if lengths is None else cuda.as_cuda_array(lengths.detach()), causal=causal, scale=scale, stream=stream)
    return out


@masked_softmax.register_fake
def _(scores, scale=SCALE, causal=False, lengths=None):
    return torch.empty_like(scores, memory_format=torch.contiguous_format)


def _remember(ctx, inputs, output):
    ctx.save_for_backward(output)
    ctx.scale = inputs[1]


def _backward(ctx, grad):
    """The derivative of softmax: p * (grad - the sum of grad * p over the row). Where the mask is, p is 0."""
    (p,) = ctx.saved_tensors
    return ctx.scale * p * (grad - (grad * p).sum(dim=-1, keepdim=True)), None, None, None


masked_softmax.register_autograd(_backward, setup_context=_remember)
