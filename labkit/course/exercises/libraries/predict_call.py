"""Predict: the six numbers of a call

`x` is (20, 64), and only its columns 16 to 47 are wanted: 32 of them. `w` is (10, 32), and `out` is (20, 10), all row
by row:

    out = x[:, 16:48] @ w.T

The call is `gemm(OP_T, OP_N, m, n, k, 1.0, w, lda, at(x, 16), ldb, 0.0, out, ldc)`, where `at(x, 16)` is the memory
of `x` from element 16 on. What are the six numbers?
"""

HINTS = ("cuBLAS writes the transpose of out. How many rows and columns does that have, and how long is each dot "
         "product?",
         "m and n are the rows and columns of out.T, k the length of a dot product. A leading dimension is the "
         "distance in memory from the beginning of one row of the array to the beginning of the next, even if only a "
         "part of the row is used.",
         "out.T is 10 x 20. The rows of w are 32 long, those of x are 64 long even if 32 are used, those of out are 10 "
         "long.")
POINTS = 2

# %%
m, n, k = None, None, None
lda, ldb, ldc = None, None, None
### BEGIN SOLUTION
m, n, k = 10, 20, 32  # out.T is 10 x 20; dot products of length 32
lda, ldb, ldc = 32, 64, 10  # the rows of w, of the whole x, and of out
### END SOLUTION

# %% [check]
from labkit.course.exercises import PredictionExercise

EXERCISE = PredictionExercise(
    name="predict_call",
    truth=lambda: {"m": 10, "n": 20, "k": 32, "lda": 32, "ldb": 64, "ldc": 10},
    how={"m": "cuBLAS computes the transpose of `out`: how many rows does it have?",
         "n": "the columns of the transpose of `out`",
         "k": "the length of a dot product",
         "lda": "the distance in memory from one row of `w` to the next",
         "ldb": "the distance in memory from one row of `x` to the next; using a part does not move the rows",
         "ldc": "the distance in memory from one row of `out` to the next"},
    wrong={"m and n are swapped": {"m": 20, "n": 10, "k": 32, "lda": 32, "ldb": 64, "ldc": 10},
           "the leading dimension of the part, as if it were stored alone": {
               "m": 10, "n": 20, "k": 32, "lda": 32, "ldb": 32, "ldc": 10},
           "k of the whole row": {"m": 10, "n": 20, "k": 64, "lda": 32, "ldb": 64, "ldc": 10},
           "leading dimensions of columns, as if the arrays were stored column by column": {
               "m": 10, "n": 20, "k": 32, "lda": 10, "ldb": 20, "ldc": 10}},
)
