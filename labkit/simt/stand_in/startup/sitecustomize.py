"""Run as Python starts, where LABKIT_SIMT is set: the CPU device in the place of numba.cuda.

The processes that a program starts have this folder on their PYTHONPATH, and read this file as sitecustomize;
labkit_simt.pth runs it as well. A sitecustomize that it hides is run after it.
"""

import os
import sys


def _install():
    folder = os.path.dirname(os.path.abspath(__file__))
    try:
        from labkit.simt import stand_in
    except ImportError:  # not installed: run from a checkout
        sys.path.append(os.path.normpath(os.path.join(folder, *[os.pardir] * 4)))
        from labkit.simt import stand_in
    stand_in.install()


def _run_hidden():
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    folder = os.path.dirname(__file__)
    sys.path[:] = [entry for entry in sys.path if entry != folder]
    spec = PathFinder.find_spec("sitecustomize")
    if spec is not None:
        sys.modules["sitecustomize"] = module = module_from_spec(spec)
        spec.loader.exec_module(module)


if os.environ.get("LABKIT_SIMT", "0") not in ("", "0"):
    _install()
if __name__ == "sitecustomize":
    _run_hidden()
