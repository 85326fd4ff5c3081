"""Three exercises: lay out one buffer for several files, predict the time of a token, and write the first launch of a
Llama from a blank page. `hint("buffer_map")` gives a hint, and a second call a better one.
"""

FIRST_CELL = """import json

import numpy as np
from numba import float32

from labkit import check, cuda, hint
from labkit._common.paths import find_root
"""

# Sizes: count files of so many tensors; T tokens of a vocabulary of V, each C wide.
