"""The door to labkit. `from labkit import cuda` gives numba.cuda on a GPU and labkit's CPU device without one.

Every name below is imported when it is first used, so `import labkit` costs next to nothing.
"""

import importlib
import sys

from labkit._version import __version__

# Name -> the module that holds it; a module that is itself the value stands for its own name.
_HOMES = {
    "cuda": "labkit.cuda",
    "device": "labkit.device",
    "ptx": "labkit.ptx",
    "graphs": "labkit.graphs",
    "simt": "labkit.simt",
    "observe": "labkit.simt",
    "measure": "labkit.measure",
    "plots": "labkit.plots",
    "roofline": "labkit.roofline",
    "Op": "labkit.op",
    "agree": "labkit.op",
    "check": "labkit.checking",
    "hint": "labkit.checking",
    "ladder": "labkit.measure",
    "show_source": "labkit.show",
}

__all__ = ["__version__", *_HOMES]


def __getattr__(name: str):
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"labkit has no {name!r}; it offers {', '.join(sorted(_HOMES))}")
    importlib.import_module(home)
    # labkit.cuda replaces itself in sys.modules, so the module is read from there.
    module = sys.modules[home]
    value = module if home == f"labkit.{name}" else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
