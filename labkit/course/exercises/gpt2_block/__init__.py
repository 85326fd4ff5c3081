"""Four exercises: where each parameter begins, a block put together in the wrong order, a prediction about a wider
block, and from a blank page the first kernel of GPT-2, which goes straight into a model. `hint("block_offsets")` gives
a hint, and a second call a better one.
"""

FIRST_CELL = """import math

import numpy as np
from numba import float32

from labkit import check, cuda, hint
from labkit.course import yours
from labkit.kernels.linear.fused import fused_tiled
from labkit.kernels.norm.layernorm import layernorm
"""

# Sizes are S, C and I for the tokens, the width and the inner width of a block; T tokens.
