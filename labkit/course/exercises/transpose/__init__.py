"""Two exercises: a prediction about the banks of a padded tile, and from a blank page a quarter turn of a picture,
coalesced on both sides and without bank conflicts. `hint("predict_banks")` gives a hint, and a second call a better
one.
"""

FIRST_CELL = """from numba import float32

from labkit import check, cuda, hint
"""

# Sizes are R (rows) and C (columns) of the picture. Blocks have 32 x 8 threads, and each turns a tile of 32 x 32.
