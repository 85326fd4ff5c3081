"""One kernel for a whole model: blocks stay resident from the first layer to the last.

    decoder.py     the sizes, and how shared memory is divided
    joins.py       counters in global memory, at which the blocks wait for one another
    ring.py        one warp copies weights into shared memory, ahead of the warps that multiply them
    product.py     rows of activations times a tile of weights, and the norm before it
    attention.py   one query of each sequence against its pages
    decode.py      a token of a Llama: the kernel and its launcher

    gpt2.py        a token of a GPT-2, without joins between its phases
    encoder.py, encode.py    the embedding of one sentence by a BERT
"""
