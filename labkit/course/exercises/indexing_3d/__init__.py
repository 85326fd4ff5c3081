"""Six exercises on coordinates, addresses and the way from one to the other. A volume has the shape `(nz, ny, nx)`, a
thread is `(x, y, z)`, and a flat array holds element `(x, y, z)` at `x + y * nx + z * nx * ny`. The checks use volumes
whose three sides differ: on a cube, half of the mistakes that you can make here do not show. `hint("layer_above")`
gives a hint, and a better one when you ask again.
"""

from labkit.course.exercises import uniform

FIRST_CELL = """import numpy as np

from labkit import check, cuda, hint, plots
"""

# Volumes have the shape (nz, ny, nx); a thread's coordinates are (x, y, z). No two axes of a size are equal unless they
# are 1, so that exchanged axes show.

BLOCK = (32, 4, 2)

VOLUMES = tuple({"nx": nx, "ny": ny, "nz": nz} for nx, ny, nz in
                ((1, 1, 1), (5, 3, 2), (2, 7, 3), (9, 5, 4), (33, 1, 5), (1, 37, 3), (6, 4, 31), (41, 17, 9)))


def grid_of(extent: tuple, block: tuple) -> tuple:
    return tuple(-(-size // width) for size, width in zip(extent, block, strict=True))


def launch(nx, ny, nz):
    return grid_of((nx, ny, nz), BLOCK), BLOCK


def random_volume(rng, nx, ny, nz):
    return (uniform(rng, nz, ny, nx),)


def flat(array):
    return array.reshape(array.size)
