"""The types that a model's numbers can have, and which of them "auto" is.

    chosen("auto", "Llama")     # "bfloat16"; on a T4 "float16"
"""

from __future__ import annotations

import numpy as np

from labkit._common.errors import short
from labkit.device import gpus

DTYPES = {"bfloat16": np.dtype(np.uint16), "float16": np.dtype(np.float16), "float32": np.dtype(np.float32)}
AUTO = "auto"
OF_LLAMA = tuple(DTYPES)
ALLOWED = {"Llama": OF_LLAMA, "Qwen3": OF_LLAMA, "GPT-2": ("float32", "float16"), "BERT": ("float16", "float32")}


def auto_dtype(kind: str = "Llama") -> str:
    """Return what "auto" is for a kind of model on the GPU that kernels are chosen for. A Llama's files are bfloat16,
    which tensor cores multiply from compute capability 8.0 on; below it is computed in float16."""
    if ALLOWED[kind] is OF_LLAMA:
        return "bfloat16" if gpus.target().capability >= (8, 0) else "float16"
    return ALLOWED[kind][0]


def chosen(dtype, kind: str) -> str:
    """Return the name of a type, with "auto" resolved. dtype: a name, or NumPy's float16 or float32. kind: of model, as
    its configuration has it. Raises ValueError, or TypeError for what is no name, which says what is allowed."""
    name = dtype
    if isinstance(dtype, np.dtype | type) and np.dtype(dtype).kind == "f":
        name = np.dtype(dtype).name
    allowed = (AUTO, *ALLOWED[kind])
    if not isinstance(name, str) or name not in allowed:
        error = ValueError if isinstance(dtype, str) else TypeError
        raise error(f"dtype is {short(dtype)}; for a {kind} it must be {', '.join(map(repr, allowed[:-1]))} or "
                    f"{allowed[-1]!r}")
    return auto_dtype(kind) if name == AUTO else name
