"""What was recorded on a GPU, in data/measurements, as `labkit bench` wrote it."""

from __future__ import annotations

from labkit import device
from labkit._common import paths, recordings
from labkit.measure.machine import slug


def recorded(gpu: str | None = None) -> dict | None:
    """The measurements recorded on a GPU, as bench wrote them; None if there are none.

    Of several files: the one named, else the present GPU's, else the H200's, else the newest.
    """
    files = {path.stem: path for path in sorted(paths.MEASUREMENTS.glob("*.json"))}
    if not files:
        return None
    if gpu is not None:
        if slug(gpu) not in files:
            raise ValueError(f"no measurements of {gpu!r} are recorded; there are {', '.join(files)}")
        path = files[slug(gpu)]
    else:
        wanted = [slug(device.name()), "nvidia-h200"]
        path = next((files[w] for w in wanted if w in files), None)
        path = path or max(files.values(), key=lambda p: p.stat().st_mtime)
    return recordings.read(path)


def recorded_series(name: str, gpu: str | None = None) -> dict | None:
    """A series that bench recorded on a GPU, such as "vector_add_sizes"; None if there is none."""
    data = recorded(gpu)
    return None if data is None else data.get("series", {}).get(name)
