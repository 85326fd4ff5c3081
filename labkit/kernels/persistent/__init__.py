"""One kernel for a token of a Llama: blocks stay resident from the embedding to the greedy token.

    decoder.py     the sizes, and how shared memory is divided
    joins.py       counters in global memory, at which the blocks wait for one another
    ring.py        one warp copies weights into shared memory, ahead of the warps that multiply them
    product.py     rows of activations times a tile of weights, and the norm before it
    attention.py   one query of each sequence against its pages
    decode.py      the kernel and its launcher
"""
