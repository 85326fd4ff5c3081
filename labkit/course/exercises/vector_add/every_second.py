r"""Every second element

$$\text{out}_i = x_{2i}$$

In NumPy this is `x[::2]`. The two arrays now have different lengths, and that of `x`, n, may be odd. `out` has
`(n + 1) // 2` elements, and one thread is started per element of `out`, rounded up to whole blocks. Which of the two
lengths belongs in the guard?
"""

HINTS = ("For an x of five elements: which index of x belongs to each element of out?",
         "Thread i owns out[i] and reads x[2 * i]. A thread is idle if it has no element of out.",
         "if i < out.size, store x[2 * i] at out[i]. The last index read is 2 * (out.size - 1), and x always has it.")
POINTS = 1
NEEDS = ("saxpy",)

from labkit import cuda


# %%
@cuda.jit
def every_second(x, out):
    i = cuda.grid(1)
    ### BEGIN SOLUTION
    if i < out.size:
        out[i] = x[2 * i]
    ### END SOLUTION

# %% [check]
from labkit.course.exercises import MOVED, Edit, KernelExercise, of, uniform
from labkit.course.exercises.vector_add import BLOCK, blocks_of


def _every_second(xp, x, out):
    out[:] = x[::2]


EXERCISE = KernelExercise(
    name="every_second",
    reference=lambda x: x[::2],
    inputs=lambda rng, n: (uniform(rng, n),),
    shape=lambda n: ((n + 1) // 2,),
    sizes=tuple({"n": n} for n in (1, 2, 65, 256, 513, 1000, 70_001)),
    launch=lambda n: (blocks_of((n + 1) // 2), BLOCK),
    timed_gpu={"n": 2**27},
    baseline=_every_second,
    domain=of(0, MOVED),
    wrong={
        "the guard compares with the length of x, but out is half as long": Edit("if i < out.size:", "if i < x.size:"),
        "it copies elements 1, 3, 5, ... instead of 0, 2, 4, ...":
            Edit("out[i] = x[2 * i]", "out[i] = x[2 * i + 1]"),
        "it copies the first half of x": Edit("out[i] = x[2 * i]", "out[i] = x[i]"),
        "half of an odd length is rounded down, and the last element is left out":
            Edit("if i < out.size:", "if i < x.size // 2:"),
    },
)
