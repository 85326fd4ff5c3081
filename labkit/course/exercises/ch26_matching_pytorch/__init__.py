"""Four exercises: a comparison that is fair and one that is not, a padded batch packed, the offsets of its sentences,
and from a blank page the shapes of its graphs. `hint("pack_ids")` gives a hint, and a second call a better one.
"""

FIRST_CELL = """import math

import numpy as np
from numba import float32, int32

from labkit import check, cuda, hint
"""

# Sizes are B sentences of at most S tokens.
