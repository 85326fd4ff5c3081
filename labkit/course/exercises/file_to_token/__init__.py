"""Three exercises. Read a tensor from a file by hand, work out where tensors begin in a file and on the device, and
find the likeliest token, from a blank page. `hint("read_tensor")` gives a hint, and a second call a better one.
"""

FIRST_CELL = """import json
import math

import numpy as np
from numba import float32, int32

from labkit import check, cuda, hint
"""

# Sizes are the numbers of tensors, rows and columns of a file; R rows and C columns.
