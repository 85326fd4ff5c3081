import json

import pytest

from labkit._common import paths
from labkit.course import passages
from labkit.course import registry as courses
from labkit.measure import Ladder, share
from tests import made_up
from tests.course.site.pages import COURSE_GPU, COURSE_LIMITS


@pytest.fixture(autouse=True)
def no_kernels(monkeypatch):
    """The search of these sites has lessons and terms: to read the docstrings of all kernels takes a second."""
    monkeypatch.setattr(passages, "of_kernels", lambda path: [])


@pytest.fixture
def course(course_dir):
    return courses.load(course_dir)


@pytest.fixture
def atlas(tmp_path, monkeypatch):
    """Recordings of the course's GPU, and of one that somebody shared: of the product alone. Returns the ladders of the
    former."""
    folder = tmp_path / "measurements"
    monkeypatch.setattr(paths, "MEASUREMENTS", folder)
    (folder / "shared").mkdir(parents=True)
    own = made_up.card(gpu=COURSE_GPU, limits=COURSE_LIMITS)
    (folder / "nvidia-h200.json").write_text(json.dumps(own))
    (folder / "shared" / "nvidia-geforce-rtx-4060.json").write_text(
        share.as_text(share.shared(made_up.card("matmul"), made_up.CARD_MACHINE)))
    return {name: Ladder.from_json(entries[0]) for name, entries in own["ops"].items()}
