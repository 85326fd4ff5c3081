"""Three exercises: a step under a token budget, a schedule with a preemption, and from a blank page what a prefix cache
finds. `hint("plan_step")` gives a hint, and a second call a better one.
"""

FIRST_CELL = """import numpy as np

from labkit import check, hint
"""

# n requests; n running sequences and m waiting prompts.
