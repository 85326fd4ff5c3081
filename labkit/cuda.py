"""The facade: `from labkit import cuda` is numba.cuda, or numba_cuda_mlir.cuda, on a GPU, and labkit.simt.api without
one.

This module replaces itself by the one that is chosen, because compilers recognise their own module object inside
kernels. The choice, and the fixes that they need, are in labkit.device.
"""

import sys

from labkit import device
from labkit.device import gpus

gpus.pretend()
if device.on_gpu():
    sys.modules[__name__] = device.gpu_cuda()
else:
    from labkit.simt import api

    sys.modules[__name__] = api
