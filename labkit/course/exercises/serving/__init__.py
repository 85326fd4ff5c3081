"""Four exercises: a prediction about queues, chunks of prompts within a limit on the time between tokens, a bug in what
a client is shown, and from a blank page a policy that beats first come, first served.
`hint("predict_waiting")` gives a hint, and a second call a better one.
"""

FIRST_CELL = """import numpy as np

from labkit import check, hint
"""
