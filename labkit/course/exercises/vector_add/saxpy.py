r"""Scale and add, in place

$$y_i \leftarrow s\,x_i + y_i$$

This is `saxpy`, the best-known routine of linear algebra: *single precision, a times x plus y*. The result overwrites
`y`, so there is no third array. `s` is a scalar, `x` and `y` are vectors of float32.

Write the guard and the store. Could another thread change the element of y that this thread still has to read?
"""

HINTS = ("Which two elements does thread i read, and which one does it write?",
         "It is the addition of the lesson with two changes: x[i] is multiplied by s, and the result goes to y[i]. The "
         "guard is the same.",
         "Under the guard if i < y.size: y[i] = s times x[i], plus the y[i] that was there.")
POINTS = 1

from labkit import cuda


# %%
@cuda.jit
def saxpy(s, x, y):
    i = cuda.grid(1)
    ### BEGIN SOLUTION
    if i < y.size:
        y[i] = s * x[i] + y[i]
    ### END SOLUTION

# %% [check]
import numpy as np

from labkit.course.exercises import SUMMED, Edit, KernelExercise, of, parameter, relative_to, uniform
from labkit.course.exercises.vector_add import BLOCK, blocks_of


@cuda.jit
def saxpy_by_one_thread(s, x, y):
    if cuda.grid(1) == 0:
        for i in range(y.size):
            y[i] = s * x[i] + y[i]


EXERCISE = KernelExercise(
    name="saxpy",
    reference=lambda s, x, y: np.float64(s) * x + y,
    inputs=lambda rng, n: (np.float32(rng.uniform(1.5, 3)), uniform(rng, n), uniform(rng, n)),
    shape=lambda n: (n,),
    start=lambda s, x, y: y,
    arguments=lambda inputs, out, size: (inputs[0], inputs[1], out),
    sizes=tuple({"n": n} for n in (1, 127, 128, 129, 1000, 70_001)),
    launch=lambda n: (blocks_of(n), BLOCK),
    tolerance=relative_to(lambda s, x, y: np.abs(s * x) + np.abs(y), roundings=2),
    domain=(*of((1, 2), *SUMMED), *parameter(0, "s", 1, 0, -2.5)),
    wrong={
        "y is overwritten, not added to": Edit("y[i] = s * x[i] + y[i]", "y[i] = s * x[i]"),
        "s multiplies y where it should multiply x": Edit("y[i] = s * x[i] + y[i]", "y[i] = x[i] + s * y[i]"),
        "s is left out": Edit("y[i] = s * x[i] + y[i]", "y[i] = x[i] + y[i]"),
        "the first thread goes through the whole vector, and the others do nothing": saxpy_by_one_thread,
        "there is no guard": Edit("if i < y.size:", "if True:"),
    },
)

AFTER = """
No, it could not: each element has one owner, and no other thread reads or writes it.
"""
