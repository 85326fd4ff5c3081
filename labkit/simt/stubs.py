"""The names that mean something only inside a kernel. On the host they are objects that say so when called.

`rewrite` recognises these objects, wherever and under whatever name a kernel's globals hold them.
"""


class Value:
    """A special register: `cuda.threadIdx.x`. `code` replaces it in the generated source."""

    def __init__(self, name, code, module="cuda"):
        self.name, self.code = f"{module}.{name}", code

    def __repr__(self):
        return f"<{self.name}: has a value only inside a kernel>"

    def _refuse(self, *_):
        raise TypeError(f"{self.name} has a value only inside a kernel")

    __int__ = __index__ = __float__ = __bool__ = __add__ = __radd__ = __mul__ = __rmul__ = __sub__ = _refuse


class Dim3:
    """`cuda.threadIdx` and its kind."""

    def __init__(self, name, prefix, module="cuda"):
        form = "_np.uint32(_{0})" if module == "u32" else "_{0}"
        self.name = f"{module}.{name}"
        self.x, self.y, self.z = (Value(f"{name}.{axis}", form.format(f"{prefix}{axis}"), module) for axis in "xyz")

    def __repr__(self):
        return f"<{self.name}: has values x, y, z only inside a kernel>"


class Function:
    """A function of the device. `params` are its parameters in order; those in `optional` may be left out."""

    def __init__(self, name, params, doc, optional=(), module="cuda"):
        self.name, self.params, self.optional = name, params.split(), optional
        self.full_name = f"{module}.{name}"  # what an error calls it
        self.__doc__ = doc
        self.__name__ = name

    def __repr__(self):
        return f"<{self.full_name}: can be called only inside a kernel>"

    def __call__(self, *args, **kwargs):
        raise TypeError(f"{self.full_name}() can be called only inside a kernel or a device function")


class Module:
    """`cuda.shared`, `cuda.atomic`, ...: a name with functions in it."""

    def __init__(self, name, **members):
        self._name = name
        self.__dict__.update(members)

    def __repr__(self):
        return f"<cuda.{self._name}>"

    def __getattr__(self, attribute):
        raise AttributeError(f"cuda.{self._name} has no {attribute!r}")


threadIdx, blockIdx = Dim3("threadIdx", "t"), Dim3("blockIdx", "b")
blockDim, gridDim = Dim3("blockDim", "bd"), Dim3("gridDim", "gd")
laneid, warpsize = Value("laneid", "(_t & 31)"), Value("warpsize", "32")

grid = Function("grid", "ndim", "Position of this thread in the whole grid: an int, or a tuple of ndim ints.")
gridsize = Function("gridsize", "ndim", "Number of threads in the whole grid, along each of ndim axes.")

_ARRAY = {"params": "shape dtype alignment", "optional": ("alignment",)}
shared = Module("shared", array=Function("shared.array", doc="An array that the threads of a block share.", **_ARRAY))
local = Module("local", array=Function("local.array", doc="An array of one thread.", **_ARRAY))
const = Module("const", array_like=Function("const.array_like", "array", "A read-only copy of a host array."))

syncthreads = Function("syncthreads", "", "Barrier: waits until every thread of the block is here.")
syncthreads_count = Function("syncthreads_count", "predicate", "Barrier; how many threads have a true predicate.")
syncthreads_and = Function("syncthreads_and", "predicate", "Barrier; 1 if the predicate of every thread is true.")
syncthreads_or = Function("syncthreads_or", "predicate", "Barrier; 1 if the predicate of any thread is true.")
syncwarp = Function("syncwarp", "mask", "Barrier for the lanes of a warp that mask names.", optional=("mask",))
threadfence = Function("threadfence", "", "Memory fence, device-wide.")
threadfence_block = Function("threadfence_block", "", "Memory fence within the block.")
threadfence_system = Function("threadfence_system", "", "Memory fence, system-wide.")
nanosleep = Function("nanosleep", "ns", "Suspends the thread; returns at once on the CPU device.")

shfl_sync = Function("shfl_sync", "mask value src_lane", "The value of lane src_lane.")
shfl_up_sync = Function("shfl_up_sync", "mask value delta", "The value of the lane delta below this one.")
shfl_down_sync = Function("shfl_down_sync", "mask value delta", "The value of the lane delta above this one.")
shfl_xor_sync = Function("shfl_xor_sync", "mask value lane_mask", "The value of the lane whose number is this ^ mask.")
all_sync = Function("all_sync", "mask predicate", "True if the predicate of every lane is true.")
any_sync = Function("any_sync", "mask predicate", "True if the predicate of any lane is true.")
eq_sync = Function("eq_sync", "mask predicate", "True if every lane has the same predicate.")
ballot_sync = Function("ballot_sync", "mask predicate", "A bit for each lane: its predicate.")
match_any_sync = Function("match_any_sync", "mask value", "A bit for each lane that holds the same value.")
match_all_sync = Function("match_all_sync", "mask value", "(mask, True) if all lanes hold one value, else (0, False).")
activemask = Function("activemask", "", "A bit for each lane of the warp that is executing this.")
lanemask_lt = Function("lanemask_lt", "", "A bit for each lane below this one.")

_ATOMICS = {
    "add": "ary[idx] += val", "sub": "ary[idx] -= val", "max": "ary[idx] = max(ary[idx], val)",
    "min": "ary[idx] = min(ary[idx], val)", "nanmax": "max that ignores NaN", "nanmin": "min that ignores NaN",
    "and_": "ary[idx] &= val", "or_": "ary[idx] |= val", "xor": "ary[idx] ^= val",
    "inc": "ary[idx] = 0 if ary[idx] >= val else ary[idx] + 1",
    "dec": "ary[idx] = val if ary[idx] == 0 or ary[idx] > val else ary[idx] - 1", "exch": "ary[idx] = val",
}  # fmt: skip
atomic = Module(
    "atomic",
    **{op: Function(f"atomic.{op}", "ary idx val", f"{doc}; returns the old value.") for op, doc in _ATOMICS.items()},
    cas=Function("atomic.cas", "ary idx old val", "ary[idx] = val if ary[idx] == old; returns the old value."),
    compare_and_swap=Function("atomic.compare_and_swap", "ary old val", "cas on ary[0]."),
)

ldca, ldcg, ldcs, ldlu, ldcv = (
    Function(name, "array index", "array[index], with a hint for the GPU's caches.")
    for name in ("ldca", "ldcg", "ldcs", "ldlu", "ldcv")
)
stcg, stcs, stwb, stwt = (
    Function(name, "array index value", "array[index] = value, with a hint for the GPU's caches.")
    for name in ("stcg", "stcs", "stwb", "stwt")
)
CACHED_LOADS, CACHED_STORES = (ldca, ldcg, ldcs, ldlu, ldcv), (stcg, stcs, stwb, stwt)

popc = Function("popc", "x", "Number of bits that are set.")
clz = Function("clz", "x", "Number of leading zero bits.")
ffs = Function("ffs", "x", "Position of the lowest bit set, counted from 1; 0 for 0.")
brev = Function("brev", "x", "The bits in reverse order.")
fma = Function("fma", "a b c", "a * b + c, rounded once.")
cbrt = Function("cbrt", "x", "Cube root.")
rsqrt = Function("rsqrt", "x", "1 / sqrt(x).")
selp = Function("selp", "test a b", "a if test else b, without a branch.")

this_grid = Function("cg.this_grid", "", "The group of all threads of the grid; its sync() is a grid-wide barrier.")
cg = Module("cg", this_grid=this_grid)

SYNC = {f.name for f in (
    syncthreads, syncthreads_count, syncthreads_and, syncthreads_or, syncwarp, shfl_sync, shfl_up_sync, shfl_down_sync,
    shfl_xor_sync, all_sync, any_sync, eq_sync, ballot_sync, match_any_sync, match_all_sync, activemask,
)}  # fmt: skip
SHUFFLES = {f.name for f in (shfl_sync, shfl_up_sync, shfl_down_sync, shfl_xor_sync)}
__all__ = [name for name, value in globals().items() if isinstance(value, (Value, Dim3, Function, Module))]
__all__.remove("this_grid")  # cuda.cg.this_grid
