"""What one call of a GPT-2 block costs from Python, in each way to give it memory, and as a graph."""

import numpy as np

from labkit import cuda, measure
from labkit.device import graphs
from labkit.models.gpt2_block import KERNEL_FOR_EACH_STEP, eight_buffers, solve
from labkit.models.gpt2_block_op import _inputs, workspace_for


def block_calls(tokens: int = 16) -> dict:
    """Wall-clock microseconds of one call with `tokens` tokens, from Python until the device is done: with a workspace,
    with an allocation for each call, with eight, and as a captured graph."""
    rng = np.random.default_rng(0)
    x, flat = (cuda.to_device(array) for array in _inputs(rng, tokens))
    out = cuda.device_array(x.shape, np.float32)
    workspace = workspace_for(tokens, np.dtype(np.float32))
    graph = graphs.capture(lambda stream: solve(x, out, flat, tokens, workspace=workspace, stream=stream))

    def us(call) -> float:
        return 1000 * measure.time_host(call, after=cuda.synchronize, budget_s=0.3).p50

    return measure.stamped({
        "tokens": tokens,
        "workspace_us": us(lambda: solve(x, out, flat, tokens, workspace=workspace)),
        "allocating_us": us(lambda: solve(x, out, flat, tokens)),
        "ten_kernels_us": us(lambda: solve(x, out, flat, tokens, workspace=workspace, kernels=KERNEL_FOR_EACH_STEP)),
        "eight_allocations_us": us(lambda: solve(x, out, flat, tokens, memory=eight_buffers,
                                                 kernels=KERNEL_FOR_EACH_STEP)),
        "graph_us": us(graph.launch),
    })
