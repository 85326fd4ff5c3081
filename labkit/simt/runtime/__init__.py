"""What the generated code calls.

Functions that touch memory take `err, t, b, site` last: the fault record, the index of the thread in its block, the
index of the block in the grid, and the index of the source line in the module's SITES.

fault_record.py     where a kernel stopped and why
shared_function.py  functions that are compiled once for all kernels, and cached on disk
memory.py           checked loads and stores, views, shared and local arrays
atomics.py          cuda.atomic
operators.py        which operators stay in 32 bits
signatures.py       the types that operations on numbers take and give
arithmetic.py       bits, fma, rsqrt, ...
collectives.py      barriers, shuffles, votes
float16.py          float16 for Numba's CPU target
ptx_memory.py, ptx_values.py, ptx_copies.py, ptx_matrices.py   the intrinsics of labkit.ptx

A shared function may call code of this folder and nothing else of labkit: its copies on disk are discarded when a
file of this folder changes.
"""

from labkit.simt.runtime.operators import OPERATORS
from labkit.simt.settings import check_numba

check_numba()  # before any function is compiled

# The names that generated code imports, by module.
HELPERS = {
    "memory": ("load", "store", "view_parts", "view_of", "record_of", "axis", "carve", "row", "poison", "fill", "copy",
               "step", "divisor", "view", "reshape"),
    "fault_record": ("fail", "poll", "spin", "fence"),
    "atomics": (
        "atomic_add", "atomic_sub", "atomic_max", "atomic_min", "atomic_nanmax", "atomic_nanmin", "atomic_and_",
        "atomic_or_", "atomic_xor", "atomic_exch", "atomic_inc", "atomic_dec", "atomic_cas",
    ),
    "arithmetic": (
        "popc", "clz", "ffs", "brev", "fma", "cbrt", "rsqrt", "remainder", "fmod", "modf", "ldexp", "frexp", "selp",
        "visits", "power", "divide", "modulo", "floor_divide", "shift_left", "shift_right", "math_pow", "floor", "ceil",
        "trunc",
        "round_digits", "unsigned_shape",
        *(f"narrow_{name}{end}" for name in OPERATORS for end in ("", "_constant")),
    ),
    "collectives": (
        "barrier", "grid_barrier", "lanes", "warps", "check_mask", "shuffle", "match_any", "match_all",
        "clear_padding", "any_set", "count_set", "value_bits",
    ),
    "shared_function": ("without_literals",),
}  # fmt: skip
PTX_HELPERS = {
    "ptx_memory": (
        "load_global4", "load_nc4", "load_shared4", "store_global4", "store_global2", "store_shared4",
        "store_global_half2", "store_global_bf162", "row_address", "address_in",
    ),
    "ptx_values": (
        "pack_half2", "pack_bf162", "unpack_half2", "unpack_bf162", "fma_half2", "fma_bf162", "float_bits",
        "bits_float", "to_tf32", "mul_hi", "tanh_approx", "exp2_approx", "rcp_approx",
    ),
    "ptx_copies": ("cp_async_16", "cp_async_4", "cp_async_commit", "cp_async_wait", "clear_queues"),
    "ptx_matrices": ("whole_warps", "ldmatrix", "mma_f32", "mma_f16"),
}  # fmt: skip
IMPORTS = (
    *(f"from labkit.simt.runtime.{module} import {name} as _{name}"
      for module, names in HELPERS.items() for name in names),
    *(f"from labkit.simt.runtime.{module} import {name} as _ptx_{name}"
      for module, names in PTX_HELPERS.items() for name in names),
)  # fmt: skip
