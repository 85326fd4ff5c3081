"""Locations: the only module of labkit outside the CPU device that knows where the repository is."""

import os
from pathlib import Path

from labkit._common.errors import UserError

PACKAGE = Path(__file__).resolve().parents[1]
REPOSITORY = PACKAGE.parent  # of a checkout; site-packages where labkit was installed apart from one
ASSETS = PACKAGE / "_common" / "assets"
MEASUREMENTS = REPOSITORY / "data" / "measurements"


def shown(path: Path, root: Path | None = None) -> str:
    """A path for messages: relative to `root` where the current directory is in it, or to the current
    directory where the file is below that (root=None); absolute otherwise."""
    path = Path(os.path.abspath(path))
    try:
        cwd = Path.cwd()
    except FileNotFoundError:  # the current directory was deleted
        return str(path)
    if root is None:
        root = cwd
    return path.relative_to(root).as_posix() if cwd.is_relative_to(root) and path.is_relative_to(root) else str(path)


def find_root() -> Path:
    """The checkout: what LABKIT_COURSE names, else where the package lies, or a directory above the current one."""
    if configured := os.environ.get("LABKIT_COURSE"):
        if not os.path.isdir(configured):
            raise UserError(f"LABKIT_COURSE is {configured!r}; it must be a directory, with a course.toml in it")
        return Path(configured).resolve()
    candidates = [REPOSITORY, Path.cwd(), *Path.cwd().parents]
    for directory in candidates:
        if (directory / "course.toml").is_file():
            return directory
    raise UserError(
        "the lessons were not found. labkit is installed apart from its repository; "
        "run the command inside a checkout of it, or install that checkout with: pip install -e ."
    )
