"""kernel[grid, block, stream, shared_bytes](...): checks of the configuration and the arguments, then the run."""

from typing import NamedTuple

import numpy as np

from labkit.simt import advice
from labkit.simt.arguments import ArgHint, argument_value
from labkit.simt.compiled_kernel import InterpretedKernel
from labkit.simt.errors import ArgumentError, LaunchError, LaunchTypeError
from labkit.simt.settings import LIMITS
from labkit.simt.workers import interpret, run_blocks

watcher = None  # called with (configured kernel, arguments) instead of each launch, if set


def dimensions(kernel, name, value):
    """(x, y, z) from an int or a tuple of up to three, checked."""
    if type(value) is int and 1 <= value <= LIMITS.max_threads_per_block:  # allowed of either
        return value, 1, 1
    parts = value if isinstance(value, (tuple, list)) else (value,)
    if not all(isinstance(p, (int, np.integer)) and not isinstance(p, bool) for p in parts):
        raise LaunchTypeError(f"{kernel.__name__}: {name}dim must be a sequence of integers, got {list(parts)}")
    if not 1 <= len(parts) <= 3:
        raise LaunchError(f"{kernel.__name__}: {name}dim must be a sequence of 1, 2 or 3 integers, got {list(parts)}")
    parts = tuple(int(p) for p in parts)
    if min(parts) < 1:
        raise LaunchError(f"{kernel.__name__}: {name} is {value!r}; every dimension must be at least 1")
    full = (*parts, 1, 1)[:3]
    limits = LIMITS.max_grid_dim if name == "grid" else LIMITS.max_block_dim
    for size, limit, axis in zip(full, limits, "xyz", strict=True):
        if size > limit:
            raise LaunchError(f"{kernel.__name__}: {name} is {value!r}; {name}Dim.{axis} may be at most {limit:,}")
    threads = full[0] * full[1] * full[2]
    if name == "block" and threads > LIMITS.max_threads_per_block:
        raise LaunchError(
            f"{kernel.__name__}: a block of {value!r} has {threads:,} threads; a block may have at most "
            f"{LIMITS.max_threads_per_block:,}"
        )
    return full


def check_launch_bounds(kernel, block):
    """Raises LaunchError for a block with more threads than the kernel's launch_bounds allow."""
    bounds = kernel.options.get("launch_bounds")
    limit = bounds[0] if isinstance(bounds, tuple) else bounds
    threads = block[0] * block[1] * block[2]
    if limit is not None and threads > limit:
        raise LaunchError(
            f"{kernel.__name__}: a block of {threads:,} threads; the kernel's launch_bounds allow at most {limit:,}"
        )


def check_count(kernel, args):
    """Raises ArgumentError for another number of arguments than the kernel takes."""
    if len(args) != len(kernel.params):
        raise ArgumentError(
            f"{kernel.__name__} takes {len(kernel.params)} arguments ({', '.join(kernel.params)}), {len(args)} given"
        )


class LastLaunch(NamedTuple):
    """What a kernel remembers of its last launch. nbytes: of its arrays together."""

    block: tuple[int, int, int]
    shared_bytes: int
    nbytes: int


class ConfiguredKernel:
    """A kernel with its launch configuration: call it with the kernel's arguments."""

    def __init__(self, kernel, grid, block, stream, sharedmem):
        self.kernel, self.grid, self.block, self.stream = kernel, grid, block, stream
        if not isinstance(sharedmem, (int, np.integer)) or sharedmem < 0:
            raise LaunchError(f"{kernel.__name__}: shared_bytes must be an int of at least 0, not {sharedmem!r}")
        self.sharedmem = int(sharedmem)
        advice.on_grid(grid[0] * grid[1] * grid[2])

    # numba.cuda's names
    dispatcher = property(lambda self: self.kernel)
    griddim = property(lambda self: self.grid)
    blockdim = property(lambda self: self.block)

    def __repr__(self):
        return f"<kernel {self.kernel.__name__}[{self.grid}, {self.block}]>"

    def __call__(self, *args):
        """Runs the kernel; a stream that records (it has `record`), or the watcher, is given the launch instead."""
        advice.on_arguments(args)
        record = getattr(self.stream, "record", None)
        if record is not None:
            record(self, args)
        elif watcher is not None:
            watcher(self, args)
        else:
            self.run(*args)

    def compile_key(self, *args):
        """What a launch with these arguments compiles, as `Kernel.load` and `compile_for` take it."""
        values = [argument_value(self.kernel, name, a) for name, a in zip(self.kernel.params, args, strict=True)]
        return self.kernel.compile_key(values, flat=self._flat)

    @property
    def _flat(self):
        return self.block[1] == self.block[2] == 1

    def run(self, *args):
        kernel = self.kernel
        check_count(kernel, args)
        afterwards = []  # copies back to the host, for cuda.Out and cuda.InOut
        if kernel.extensions:
            args = [self._extended(a, afterwards) for a in args]
        args = [a.to_device(afterwards, self.stream) if isinstance(a, ArgHint) else a for a in args]
        compiled, values = kernel.compiled_for(args, flat=self._flat)
        kernel.last_launch = LastLaunch(self.block, self.sharedmem, sum(getattr(a, "nbytes", 0) for a in values))
        self._check_shared(compiled)
        self._check_cooperative(compiled)
        if isinstance(compiled, InterpretedKernel):
            interpret(compiled, self.grid, self.block, self.sharedmem, values)
        else:
            run_blocks(kernel, compiled, self.grid, self.block, self.sharedmem, values)
        for copy_back in afterwards:
            copy_back()

    def _extended(self, value, afterwards):
        """What the kernel's extensions make of an argument, each of what the one before made."""
        ty = None  # as in numba.cuda's simulator: an extension looks at the value
        for extension in self.kernel.extensions:
            ty, value = extension.prepare_args(ty, value, stream=self.stream, retr=afterwards)
        return value

    def _check_shared(self, compiled):
        static, limit, cap = compiled.static_bytes, LIMITS.shared_per_block, LIMITS.shared_per_block_optin
        total, allowed = static + self.sharedmem, self.kernel.dynamic_allowed
        if total <= limit or (static <= limit and self.sharedmem <= allowed and total <= cap and allowed > limit):
            return
        dynamic = f" and {self.sharedmem:,} at launch" if self.sharedmem else ""
        end = f"a block has {limit:,}"
        if self.sharedmem and static <= limit:
            end = f"a block has {cap:,}"
            if total <= cap:
                end = (
                    f"a block has {limit:,}, and up to {cap:,} where launching.dynamic_shared(kernel, nbytes, *args) "
                    "allowed the kernel so much dynamic shared memory before"
                )
                if allowed > limit:
                    end += f"; it was allowed {allowed:,}"
        raise LaunchError(
            f"{self.kernel.__name__} uses too much shared memory: {static:,} bytes in shared.array{dynamic}; {end}"
        )

    def _check_cooperative(self, compiled):
        if not compiled.program.cooperative:
            return
        blocks, cap = int(np.prod(self.grid)), compiled.max_cooperative_grid_blocks(self.block)
        if blocks > cap:
            raise LaunchError(
                f"{self.kernel.__name__} synchronises the grid, and a grid of {blocks:,} blocks of {self.block} is too "
                f"large for that: at most {cap:,}"
            )
