"""
Three exercises. Cut a word into pieces, work out what padding costs, and write BERT's first launch from a blank page;
it then runs in an encoder. `hint("word_pieces")` gives a hint, and a second call a better one.
"""

FIRST_CELL = """import math

import numpy as np
from numba import float32

from labkit import check, cuda, hint
from labkit.course import yours
"""

# Sizes are T tokens and C columns; a word has `letters`, and its vocabulary longer `pieces`.
