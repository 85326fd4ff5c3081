"""Four exercises: an RMSNorm by a whole block, the rotation, a prediction about launches and llama3 scaling, and both
kernels in one from a blank page. The first two will run in a Llama. `hint("rmsnorm_block")` gives a hint, and a
second call a better one.
"""

import numpy as np

from labkit.models.llama import Config

FIRST_CELL = """import math

import numpy as np
from numba import float32

from labkit import check, cuda, hint
from labkit.course import yours
"""

# Sizes are T tokens, C columns, H heads, and D numbers in a head.

ALL_LANES = 0xFFFFFFFF


def normed(x, weight, epsilon):
    x = np.asarray(x, np.float64)
    return x / np.sqrt((x * x).mean(axis=1, keepdims=True) + epsilon) * weight


POSITIONS = 40

LLAMA_3_1_8B = Config(
    vocab_size=128_256, hidden_size=4096, intermediate_size=14_336, num_hidden_layers=32, num_attention_heads=32,
    num_key_value_heads=8, head_dim=128, max_position_embeddings=131_072, rms_norm_eps=1e-5, rope_theta=500_000.0,
    rope_scaling={"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                  "original_max_position_embeddings": 8192})
