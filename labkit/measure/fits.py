"""Would it run there? What a kernel takes of each GPU that learners have, without one."""

from __future__ import annotations

import functools

from labkit.device import gpus, launches
from labkit.measure import unfilled


def launches_for(op, rung, size: dict, gpu: gpus.GPU) -> list[launches.Launch]:
    """What a rung launches at a size on this GPU, each kernel, shape and type once: nothing is compiled, filled or run.

    Raises ValueError where the launcher refuses the size, or the GPU.
    """
    arguments = _arguments(op, tuple(size.items()))
    with gpus.plan_for(gpu):
        if rung.missing:
            raise ValueError(f"{rung.__name__} {rung.missing}")
        planned = launches.planned(functools.partial(rung, *arguments))
    return list({(id(one.kernel), one.block, one.shared_bytes, str(one.signature)): one for one in planned}.values())


@functools.lru_cache(maxsize=1)
def _arguments(op, size: tuple) -> tuple:
    return unfilled.arguments(op, dict(size))
