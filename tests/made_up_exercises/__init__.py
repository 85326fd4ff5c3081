"""A course with four exercises for tests, which may change its files."""

import shutil
from pathlib import Path

HERE = Path(__file__).parent


def copy_to(root: Path, monkeypatch) -> Path:
    """Write the course to `root`, and let LABKIT_EXERCISES name its exercises. Return the folder of the chapter's."""
    folder = root / "own" / "first"
    shutil.copytree(HERE / "first", folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(HERE / "course.toml", root)
    monkeypatch.setenv("LABKIT_EXERCISES", str(folder.parent))
    return folder
