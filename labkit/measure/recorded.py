"""What was recorded on a GPU, in data/measurements, as `labkit bench` wrote it."""

from __future__ import annotations

from pathlib import Path

from labkit import device
from labkit._common import paths, recordings
from labkit.measure.machine import slug


def recorded(gpu: str | None = None, section: str = "", name: str = "") -> dict | None:
    """The measurements recorded on a GPU, as bench wrote them; None if there are none.

    gpu: whose; left out, the present GPU's, else the H200's, else the newest. section, name: of a part that they must
    hold, such as "ops" and "matmul"; a GPU of which something else was recorded is passed over then.
    """
    files = {path.stem: path for path in sorted(paths.MEASUREMENTS.glob("*.json"))}
    if not files:
        return None
    if gpu is not None:
        if slug(gpu) not in files:
            raise ValueError(f"no measurements of {gpu!r} are recorded; there are {', '.join(files)}")
        return recordings.read(files[slug(gpu)])
    newest = sorted(files, key=lambda stem: files[stem].stat().st_mtime, reverse=True)
    for stem in dict.fromkeys([slug(device.name()), "nvidia-h200", *newest]):
        if stem in files and (not name or name in recordings.read(files[stem]).get(section, {})):
            return recordings.read(files[stem])
    return None


def recorded_series(name: str, gpu: str | None = None) -> dict | None:
    """A series that bench recorded on a GPU, such as "vector_add_sizes"; None if there is none."""
    data = recorded(gpu, "series", name)
    return None if data is None else data.get("series", {}).get(name)


def shared_folder() -> Path:
    """Where the files lie that `labkit bench --share` writes: one for each GPU that somebody has shared."""
    return paths.MEASUREMENTS / "shared"


def recordings_by_gpu() -> dict[str, list[dict]]:
    """Every GPU of which something is recorded, by its name, with its recordings: the course's own, then what others
    shared."""
    found: dict[str, list[dict]] = {}
    for path in (*sorted(paths.MEASUREMENTS.glob("*.json")), *sorted(shared_folder().glob("*.json"))):
        recording = recordings.read(path)
        found.setdefault(recording["machine"]["device"], []).append(recording)
    return found
