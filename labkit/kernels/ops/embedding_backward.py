"""token_embedding_backward, token_embedding_backward_bf16 and position_embedding_backward: inputs, sizes, tolerances,
work and baselines of the rungs in labkit.kernels.embedding_backward."""

import numpy as np

from labkit.kernels import embedding_backward
from labkit.kernels.baselines import Baseline
from labkit.kernels.elements import BFLOAT16, FLOAT32, Element
from labkit.kernels.embedding_backward import position_embedding_backward_reference, token_embedding_backward_reference
from labkit.kernels.op import Op, Work, rungs_of, sizes, uniform
from labkit.kernels.tolerance import EPS32

VOCABULARY = 50257  # GPT-2's, where the operation is timed
SMALL_VOCABULARY = 97


def vocabulary_of(T: int) -> int:
    return VOCABULARY if T >= 4096 else SMALL_VOCABULARY


def _torch(torch, ids, dout, out):
    return torch.ops.aten.embedding_dense_backward(dout, ids.long(), out.shape[0], -1, False)


def token_embedding_backward_op(name: str, element: Element):
    cast, itemsize = element.array_of, element.dtype.itemsize

    def inputs(rng, T, C):
        """Tokens as frequent as words: the r-th has 1/r of the most frequent one's occurrences."""
        vocabulary = vocabulary_of(T)
        ids = np.exp(rng.random(T) * np.log(vocabulary)).astype(np.int32) - 1
        return np.minimum(ids, vocabulary - 1), cast(uniform(rng, T, C))

    def reference(ids, dout):
        return token_embedding_backward_reference(ids, dout, vocabulary_of(len(ids)))

    def tolerance(ids, dout):
        total = token_embedding_backward_reference(ids, np.abs(dout), vocabulary_of(len(ids)))
        return EPS32 * 2 * np.sqrt(len(ids)) * total + element.rounding_error(reference(ids, dout))

    def torch_tolerance(ids, dout):
        """PyTorch adds up parts of a frequent token's rows, and rounds each."""
        total = token_embedding_backward_reference(ids, np.abs(dout), vocabulary_of(len(ids)))
        return tolerance(ids, dout) + element.rounding_error(total)

    return Op(
        name,
        title="Gradient of the token embedding" + f", in {element.name}" * (element != FLOAT32),
        formula="dtokens[v] = sum of dout[t] over all t with ids[t] = v",
        reference=reference,
        rungs=rungs_of(embedding_backward, "token_embedding_backward"),
        inputs=inputs,
        shape=lambda T, C: (vocabulary_of(T), C),
        awkward=sizes("T C", (1, 1), (70, 13), (301, 264)),
        tolerance=tolerance,
        by_row=(),
        work=Work(
            flops=lambda T, C: T * C,
            bytes=lambda T, C: itemsize * (T + vocabulary_of(T)) * C,
            timed_gpu={"T": 8192, "C": 768},  # GPT-2
            timed_cpu={"T": 128, "C": 64},
        ),
        baselines=(Baseline("PyTorch", "torch", _torch, tolerance=torch_tolerance),),
        dtype=element.dtype,
    )


TOKEN_EMBEDDING_BACKWARD = token_embedding_backward_op("token_embedding_backward", FLOAT32)
TOKEN_EMBEDDING_BACKWARD_BF16 = token_embedding_backward_op("token_embedding_backward_bf16", BFLOAT16)

LENGTH = 3  # positions of a sequence, but where the operation is timed


def _length_of(T: int) -> int:
    return 1024 if T >= 4096 else LENGTH


POSITION_EMBEDDING_BACKWARD = Op(
    "position_embedding_backward",
    title="Gradient of the position embedding",
    formula="dpositions[s] = sum of dout[b * S + s] over all sequences b",
    reference=lambda dout: position_embedding_backward_reference(dout, _length_of(len(dout))),
    rungs=(embedding_backward.position_embedding_backward,),
    inputs=lambda rng, T, C: (uniform(rng, T, C),),
    shape=lambda T, C: (_length_of(T), C),
    awkward=sizes("T C", (3, 1), (9, 5), (15, 264)),
    tolerance=lambda dout: EPS32 * len(dout) * position_embedding_backward_reference(np.abs(dout),
                                                                                    _length_of(len(dout))),
    by_row=(),
    work=Work(
        flops=lambda T, C: T * C,
        bytes=lambda T, C: 4 * (T + _length_of(T)) * C,
        timed_gpu={"T": 8192, "C": 768},
        timed_cpu={"T": 96, "C": 64},
    ),
    baselines=(Baseline("PyTorch", "torch",
                        lambda torch, dout, out: dout.view(-1, *out.shape).sum(dim=0)),),
)
