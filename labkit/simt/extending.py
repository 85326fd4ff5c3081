"""numba.cuda.extending: Numba's own extension interface, whose overloads are for kernels unless they say otherwise."""

import functools

import numba.extending
from numba.core.datamodel import models as core_models  # noqa: F401
from numba.extending import *  # noqa: F403
from numba.extending import _Intrinsic  # noqa: F401


def _for_kernels(decorator):
    @functools.wraps(decorator)
    def extend(*args, target="cuda", **options):
        return decorator(*args, target=target, **options)

    return extend


overload = _for_kernels(numba.extending.overload)
overload_method = _for_kernels(numba.extending.overload_method)
overload_attribute = _for_kernels(numba.extending.overload_attribute)
overload_classmethod = _for_kernels(numba.extending.overload_classmethod)
