"""The CPU device in the place of numba.cuda and numba_cuda_mlir.cuda, for programs that know nothing of labkit.

`install()` does it, before a program's first import of either; they need not be installed. It imports nothing itself:
a program that does not use CUDA loses no time.

modules.py       what `numba.cuda` and its submodules hold
environment.py   LABKIT_SIMT=1: installed as Python starts, with no change to a program or its command
startup/         the same for the processes that a program starts
"""

import importlib
import importlib.abc
import importlib.machinery
import os
import sys

NAME, MLIR = "numba.cuda", "numba_cuda_mlir"


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds numba.cuda, numba_cuda_mlir and their submodules, whether or not they are installed."""

    def find_spec(self, name, path=None, target=None):
        if name == "numba" and sys.meta_path[0] is not self:  # numba-cuda's own finder may have come in front
            sys.meta_path.remove(self)
            sys.meta_path.insert(0, self)
        part = submodule(name)
        if part is None:
            return None
        from labkit.simt.stand_in import modules

        if modules.exists(part) and not (path and part.partition(".")[0] == "tests"):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        if path:  # someone has given numba.cuda a folder
            return None
        raise ModuleNotFoundError(f"{name} does not exist on the CPU device, which is in its place", name=name)

    def create_module(self, spec):
        from labkit.simt.stand_in import modules

        return modules.Cuda(spec.name) if spec.name == NAME else modules.Submodule(spec.name)

    def exec_module(self, module):
        from labkit.simt import advice, settings, unsigned
        from labkit.simt.stand_in import modules

        name, part = module.__name__, submodule(module.__name__)
        if name == MLIR:
            vars(module).update(modules.of_mlir())
        elif part not in modules.MODULES and modules.home(part):
            sys.modules[name] = importlib.import_module(modules.home(part))
        elif not name.startswith(NAME):
            sys.modules[name] = importlib.import_module(f"{NAME}.{part}".removesuffix("."))
        else:
            unsigned.switch_off()
            advice.switch_on()
            settings.await_no_returned_threads()
            vars(module).update(modules.MODULES.get(part, dict)())


def submodule(name):
    """The part of a module's name below numba.cuda, "" for that itself; None for what is none of it.

    numba-cuda-mlir has the same modules in packages of its own.
    """
    for package in (f"{MLIR}.cuda", f"{MLIR}.numba_cuda", MLIR, NAME):
        if name == package or name.startswith(f"{package}."):
            return name.removeprefix(package).removeprefix(".")
    return None


def is_installed():
    """Whether the CPU device is in the place of numba.cuda."""
    return any(isinstance(finder, Finder) for finder in sys.meta_path)


def install():
    """Put the CPU device in the place of numba.cuda and numba_cuda_mlir.cuda, for the imports that follow.

    Types are Numba's own then, also in packages that ask for labkit.simt.unsigned. Raises ImportError where a module
    has imported numba.cuda already.
    """
    if is_installed():
        return
    real = [sys.modules[name] for name in (NAME, MLIR, f"{MLIR}.cuda") if name in sys.modules]
    for name, module in list(sys.modules.items()) if real else []:
        if name.partition(".")[0] in ("numba", MLIR, "numba_cuda"):
            continue
        values = list(getattr(module, "__dict__", {}).values())
        if any(value is known for value in values for known in real):
            raise ImportError(
                f"{name} has imported numba.cuda already: labkit.simt.stand_in.install() must come before its import"
            )
    for name in [name for name in sys.modules if submodule(name) is not None]:
        del sys.modules[name]
    sys.meta_path.insert(0, Finder())
    os.environ["LABKIT_DEVICE"] = "cpu"  # labkit.cuda, where a program uses it
