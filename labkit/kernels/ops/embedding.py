"""embedding, token_embedding and token_embedding_bf16: inputs, sizes, tolerances, work and
baselines of the rungs in labkit.kernels.embedding."""

import numpy as np

from labkit.kernels import embedding
from labkit.kernels.baselines import Baseline
from labkit.kernels.elements import BFLOAT16, FLOAT32, Element
from labkit.kernels.op import Op, Work, rungs_of, sizes, uniform


def _inputs(rng, T, C):
    vocabulary, start = 97, 3
    return (rng.integers(0, vocabulary, T).astype(np.int32), uniform(rng, vocabulary, C), uniform(rng, start + T, C),
            np.array([start], np.int32))


def _torch(torch, ids, tokens, positions, start, out):
    position_ids = torch.arange(len(ids), device=ids.device) + start
    embedding = torch.nn.functional.embedding
    return embedding(ids, tokens) + embedding(position_ids, positions)


EMBEDDING = Op(
    "embedding",
    title="Token and position embedding",
    formula="out[t, col] = tokens[ids[t], col] + positions[start + t, col]",
    reference=embedding.embedding_reference,
    rungs=rungs_of(embedding, "embedding"),
    inputs=_inputs,
    shape=lambda T, C: (T, C),
    awkward=sizes("T C", (1, 1), (5, 13), (7, 256), (3, 1023), (2, 1028), (3, 2048), (2, 2051)),
    tolerance=lambda ids, tokens, positions, start: np.zeros((len(ids), tokens.shape[1])),  # exact
    by_row=(),
    work=Work(
        flops=lambda T, C: T * C,
        bytes=lambda T, C: 12 * T * C,
        timed_gpu={"T": 8192, "C": 768},
        timed_cpu={"T": 64, "C": 768},
    ),
    baselines=(Baseline("PyTorch", "torch", _torch, note="unfused: two gathers, then add"),),
)


def _torch_tokens(torch, ids, tokens, out):
    return torch.nn.functional.embedding(ids, tokens)


def token_op(name: str, element: Element):
    cast, itemsize = element.array_of, element.dtype.itemsize
    return Op(
        name,
        title="Token embedding" + f" in {element.name}" * (element != FLOAT32),
        formula="out[t, col] = tokens[ids[t], col]",
        reference=embedding.token_embedding_reference,
        rungs=rungs_of(embedding, "token_embedding"),
        inputs=lambda rng, T, C: (rng.integers(0, 97, T).astype(np.int32), cast(uniform(rng, 97, C))),
        shape=lambda T, C: (T, C),
        awkward=sizes("T C", (1, 1), (7, 264), (3, 1023)),
        tolerance=lambda ids, tokens: np.zeros((len(ids), tokens.shape[1])),  # exact
        by_row=(),
        work=Work(
            flops=lambda T, C: 0,
            bytes=lambda T, C: itemsize * (T + 97) * C,  # of the table each row once
            timed_gpu={"T": 4096, "C": 2048},
            timed_cpu={"T": 64, "C": 256},
        ),
        baselines=(Baseline("PyTorch", "torch", _torch_tokens),),
        dtype=element.dtype,
    )


TOKEN_EMBEDDING = token_op("token_embedding", FLOAT32)
TOKEN_EMBEDDING_BF16 = token_op("token_embedding_bf16", BFLOAT16)
