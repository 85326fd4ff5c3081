"""Five exercises. Append rows to the cache, predict what the cache saves, repair a mask that counts positions wrongly,
write a sampler's distribution from a blank page, and apply Amdahl's law. One kernel goes into the model.
`hint("append_rows")` gives a hint, and a second call a better one.
"""

FIRST_CELL = """import math

import numpy as np
from numba import float32

from labkit import check, cuda, hint
from labkit.course import yours
"""

# Sizes are S (tokens), C (width), N (rows of the cache) and before (tokens in it); T queries; V the size of a
# vocabulary.
