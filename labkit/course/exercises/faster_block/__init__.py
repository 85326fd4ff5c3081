"""Three exercises: a bias and a GELU in one kernel, which goes straight into the model, a prediction about what fusing
saves, and from a blank page a program that replays one graph for many inputs. `hint("bias_gelu_tanh")` gives a hint,
and a second call a better one.
"""

FIRST_CELL = """import math

import numpy as np
from numba import float32

from labkit import check, cuda, graphs, hint
from labkit.course import yours
from labkit.kernels.linear.fused import fused_tiled
"""

# Sizes are R (rows) and C (columns); N inputs of S rows and C columns, and I columns of their outputs.
