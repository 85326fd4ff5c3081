"""The process of a lesson that is started before its turn: Jupyter's kernel, with what lessons import already imported.

    python -m labkit.course.lesson_kernel -f CONNECTION_FILE

Numba, Matplotlib and labkit's kernels take about two seconds to import, PyTorch and CuPy another four. All of that is
done while the lesson before still runs. Nothing is launched on the GPU here: it would disturb that lesson's times.
"""

import gc
import importlib
import sys


def import_ahead() -> None:
    """What lessons import. A library that cannot be imported is left to the lesson, which says what it means."""
    for name in ("matplotlib.pyplot", "matplotlib_inline.backend_inline", "labkit.cuda", "labkit.measure.plots"):
        _try(importlib.import_module, name)
    _try(lambda: importlib.import_module("labkit.measure.ops").all_ops())
    if importlib.import_module("labkit.device").on_gpu():
        from labkit.measure.machine import import_library

        _try(lambda: importlib.import_module("labkit").cuda.current_context())
        for name in ("torch", "cupy", "triton"):
            _try(import_library, name)


def _try(call, *arguments) -> None:
    try:
        call(*arguments)
    except Exception as error:  # only sooner or later, never whether
        print(f"not imported ahead: {type(error).__name__}: {error}", file=sys.stderr)


if __name__ == "__main__":
    import_ahead()
    gc.freeze()  # imports stay alive: no collection of the lesson has to traverse them again
    from ipykernel import kernelapp

    kernelapp.launch_new_instance()
