# %% [markdown]
# # 22 · The transpose: exercises
#
# Three exercises: a prediction about banks, a bias and a GELU in one kernel, and from a blank page a residual and a
# norm that read everything once. `hint("predict_banks")` gives a hint, and a second call a better one.

# %%
import math

from numba import float32

from labkit import check, cuda, hint

# %% [markdown]
# ## 1 · Predict: the banks of a padded tile
#
# The 32 lanes of a warp read a column of a tile in shared memory: lane L reads `tile[L, 5]`. The rows of the tile are
# `pitch` elements long, of which 32 hold data. Shared memory has 32 banks, and the element at place i lies in bank
# i % 32. In how many steps does the warp get its column?

# %%
pitch_32 = None  # steps, with rows of 32
pitch_33 = None
pitch_34 = None
pitch_40 = None
pitch_47 = None
### BEGIN SOLUTION
pitch_32 = 32  # every lane in bank 5
pitch_33 = 1  # bank L + 5: all different
pitch_34 = 2  # bank 2 L + 5: 16 banks, two lanes each
pitch_40 = 8  # bank 8 L + 5: four banks, eight lanes each
pitch_47 = 1  # 15 L + 5: 15 and 32 have no common factor
### END SOLUTION

# %%
check("predict_banks", pitch_32=pitch_32, pitch_33=pitch_33, pitch_34=pitch_34, pitch_40=pitch_40, pitch_47=pitch_47)
