"""The kernels that may spill, with ptxas 13.5: a few bytes, outside of inner loops or in
exchange for a second block on an SM, where more registers would cost more. Bytes of stores and loads together."""

# Kernel -> (the most bytes, the compute capabilities, why).
SPILLS = {
    "wgmma_specialised_kernel": (256, ((9, 0),), "SwiGLU in float16 of 256 columns, while a tile is stored"),
    "argmax_in_flight_kernel": (
        24, ((8, 0), (9, 0), (10, 0)), "sixteen loads of 1,024 threads, twice on an SM, in 32 registers each"),
    "streamed_tensor_kernel": (32, ((8, 0), (8, 6), (8, 9), (9, 0)), "512 threads have at most 128 registers each"),
    "paged_decode_mma_kernel": (56, ((9, 0),), "16 heads: four blocks of an SM hide the latency of pages"),
    "attention_sentences_flash_half_kernel": (
        80, ((8, 0), (8, 6), (8, 9), (9, 0)), "three blocks of an SM, with 168 registers a thread"),
    "paged_prefill_mma_kernel": (48, ((7, 5),), "heads of 128 by one warp: copies go through registers, all 255 taken"),
    "logprobs_chunk_kernel": (
        40, ((7, 5), (8, 0), (8, 6), (8, 9), (9, 0)), "two blocks of 512 threads on an SM, 64 registers each"),
    "mean_pool_kernel": (
        8, ((12, 0),), "all rows in flight: with 144 registers a thread, an SM would hold one block instead of two"),
    "norm_backward_fused_kernel": (
        80, ((7, 5), (8, 0), (8, 6), (8, 9)), "16 warps of an SM with 128 registers a thread, or 32 with 64"),
    "pipelined_kernel": (44, ((8, 0), (8, 6), (8, 9), (10, 0), (12, 0)), "two blocks of an SM, with 128 registers a "
                                                                        "thread, before the loop"),
}


def allowed(kernel_name: str, capability: tuple) -> int:
    """The bytes that a kernel may spill on a GPU of this compute capability."""
    most, capabilities, _ = SPILLS.get(kernel_name, (0, (), ""))
    return most if tuple(capability[:2]) in capabilities else 0
