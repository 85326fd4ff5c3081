"""
Three exercises: a word in pieces, what padding costs, and from a blank page BERT's first launch, which has a place in
the encoder. `hint("word_pieces")` gives a hint, and a second call a better one.
"""

FIRST_CELL = """import math

import numpy as np
from numba import float32

from labkit import check, cuda, hint
from labkit.course import yours
"""

# Sizes are T tokens and C columns; a word has `letters`, and its vocabulary longer `pieces`.
