"""The door to labkit. `from labkit import cuda` gives numba.cuda on a GPU and labkit's CPU device without one.

Every name below is imported when it is first used, so `import labkit` costs next to nothing.
"""

import importlib
import sys

from labkit._common.version import __version__

# Name -> the module that it is, or module:name.
_HOMES = {
    "cuda": "labkit.cuda",
    "device": "labkit.device",
    "ptx": "labkit.device.ptx",
    "u32": "labkit.device.u32",
    "graphs": "labkit.device.graphs",
    "simt": "labkit.simt",
    "observe": "labkit.simt:observe",
    "measure": "labkit.measure",
    "plots": "labkit.measure.plots",
    "roofline": "labkit.measure.roofline",
    "Op": "labkit.kernels.op:Op",
    "agree": "labkit.kernels.agree:agree",
    "fits": "labkit.measure.fits:fits",
    "check": "labkit.course.check:check",
    "hint": "labkit.course.check:hint",
    "ladder": "labkit.measure:ladder",
    "show_source": "labkit.course.show:show_source",
    "table": "labkit._common.tables:table",
}

__all__ = ["__version__", *_HOMES]


def __getattr__(name: str):
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"labkit has no {name!r}; it offers {', '.join(sorted(_HOMES))}")
    module, _, attribute = home.partition(":")
    importlib.import_module(module)
    # labkit.cuda replaces itself in sys.modules, so the module is read from there.
    value = getattr(sys.modules[module], attribute) if attribute else sys.modules[module]
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
