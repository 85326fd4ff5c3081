"""labkit weights, embed, sts, search, and the index of labkit build, with a model in NumPy as the encoder."""

import hashlib
import json
import os
import signal
import string
import subprocess
import sys
import time

import numpy as np
import pytest
from typer.testing import CliRunner

from labkit import cli
from labkit._common import paths
from labkit._common.paths import REPOSITORY
from labkit.course import passages, search
from labkit.course import registry as courses
from labkit.models import weights
from labkit.models.weights import File, Published
from tests import interrupts
from tests.course.site.pages import add_term

TINY = Published("minilm", "someone/tiny", "tiny==1", 10, "tiny",
                 {"config.json": File(2, hashlib.sha256(b"{}").hexdigest())})


class Letters:
    """An encoder: how often each letter occurs, of length 1."""

    def encode(self, texts, *, batch_size=32, progress=None):
        alone = isinstance(texts, str)
        counts = np.array([[text.lower().count(letter) + 1e-3 for letter in string.ascii_lowercase]
                           for text in ([texts] if alone else texts)], np.float32).reshape(-1, 26)
        if progress:
            progress(len(counts), len(counts))
        counts /= np.linalg.norm(counts, axis=1, keepdims=True)
        return counts[0] if alone else counts


@pytest.fixture
def labkit(course_dir, monkeypatch, tmp_path):
    """Runs the command on the small course, without labkit's own kernels; no weights are there."""
    monkeypatch.setattr(paths, "find_root", lambda: course_dir)
    monkeypatch.setattr(passages, "of_kernels", lambda path: iter(()))
    monkeypatch.setenv("COLUMNS", "250")
    monkeypatch.setenv("LABKIT_WEIGHTS", str(tmp_path / "cache"))
    monkeypatch.setitem(weights.PUBLISHED, "minilm", TINY)
    monkeypatch.setattr(search, "MODEL", TINY)
    monkeypatch.chdir(course_dir)
    monkeypatch.setenv("LABKIT_DEVICE", "cpu")
    for number, words in (("00_first", "A kernel waits for memory."), ("01_second", "Bank conflicts are rare.")):
        source = course_dir / "notebooks" / f"{number}.py"
        source.write_text(source.read_text().replace("# ## The problem", f"# ## The problem\n#\n# {words}"))
    runner = CliRunner()
    return lambda *arguments, **more: runner.invoke(cli.app, list(arguments), **more)


@pytest.fixture
def encoder(labkit, tmp_path, monkeypatch):
    """The weights are there, and the encoder is one that counts letters."""
    from labkit.models.sentences import Encoder

    (tmp_path / "given").mkdir()
    (tmp_path / "given" / "config.json").write_text("{}")
    assert labkit("weights", "minilm", "--from", str(tmp_path / "given")).exit_code == 0
    monkeypatch.setattr(search, "identity", lambda: "letters")
    monkeypatch.setattr(Encoder, "from_pretrained", classmethod(lambda cls, name="minilm", **options: Letters()))
    monkeypatch.setattr("labkit.models.sentences.folder_of", lambda name: name)


# --- weights ---------------------------------------------------------------------------------------------------------


def test_weights_from_a_folder_and_once_more(labkit, tmp_path):
    (tmp_path / "given").mkdir()
    (tmp_path / "given" / "config.json").write_text("{}")
    done = labkit("weights", "minilm", "--cache")
    assert done.exit_code == 2 and "`labkit weights minilm` fetches them" in done.output
    done = labkit("weights", "minilm", "--from", str(tmp_path / "given"))
    assert done.exit_code == 0, done.output
    assert f"The weights of someone/tiny come from {tmp_path / 'given'}: 0 MB in {tmp_path / 'cache'}" in done.output
    done = labkit("weights")
    assert done.exit_code == 0 and "were already there, and each file is as published" in done.output
    assert labkit("weights", "--cache").stdout == f"{tmp_path / 'cache' / 'minilm'}\n"


def test_weights_that_are_wrong_or_unknown_are_a_sentence(labkit, tmp_path):
    (tmp_path / "given").mkdir()
    (tmp_path / "given" / "config.json").write_text("[]")
    done = labkit("weights", "--from", str(tmp_path / "given"))
    assert done.exit_code == 2 and "config.json is not the file that is known: its sha256 is" in done.output
    assert not (tmp_path / "cache" / "minilm").exists()
    done = labkit("weights", "bert")
    assert done.exit_code == 2 and "MODEL is 'bert'; allowed are minilm" in done.output


# --- embed -----------------------------------------------------------------------------------------------------------


def test_embed_a_file(labkit, encoder, tmp_path):
    lines = ["a kernel", "", "naïve \u2028 日本", "last\x0bone"]
    for name, text in (("unix", "\n".join(lines) + "\n"), ("dos", "\ufeff" + "\r\n".join(lines))):
        (tmp_path / name).write_bytes(text.encode())
        done = labkit("embed", str(tmp_path / name), "-o", str(tmp_path / "deep" / f"{name}.npy"))
        assert done.exit_code == 0, done.output
        assert "4 texts in " in done.output and " per second): 4 x 26 float32, 0.0 MB, in " in done.output
        found = np.load(tmp_path / "deep" / f"{name}.npy")
        np.testing.assert_array_equal(found, Letters().encode(lines))
        assert found.dtype == np.float32
    assert sorted(path.name for path in (tmp_path / "deep").iterdir()) == ["dos.npy", "unix.npy"]


def test_embed_the_standard_input_and_nothing(labkit, encoder, tmp_path):
    out = tmp_path / "out.npy"
    assert labkit("embed", "-", "-o", str(out), input=b"one\ntwo\n").exit_code == 0
    assert np.load(out).shape == (2, 26)
    done = labkit("embed", "-", "-o", str(out), input=b"")
    assert done.exit_code == 0 and "0 texts in " in done.output
    assert np.load(out).shape == (0, 26)
    done = labkit("embed", "-", "-o", str(out), input=b"\xff")
    assert done.exit_code == 2 and "standard input is not UTF-8 text: the byte at 0 is 0xff" in done.output
    assert np.load(out).shape == (0, 26)


def test_embed_through_a_link_writes_the_file_that_it_leads_to(labkit, encoder, tmp_path):
    (tmp_path / "link.npy").symlink_to(tmp_path / "real.npy")
    assert labkit("embed", "-", "-o", str(tmp_path / "link.npy"), input=b"one\n").exit_code == 0
    assert (tmp_path / "link.npy").is_symlink() and np.load(tmp_path / "real.npy").shape == (1, 26)


@pytest.mark.skipif(os.name == "nt", reason="Windows has no named pipes in folders")
def test_embed_wrong_use_is_a_sentence_and_writes_nothing(labkit, encoder, tmp_path):
    (tmp_path / "text").write_text("one\n")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    os.mkfifo(tmp_path / "pipe")
    for file, out, words in (("none", "out.npy", "does not exist"), ("bytes", "out.npy", "no text in UTF-8"),
                             ("text", ".", "is a folder; it must be the path of a file"),
                             ("text", "pipe", "is a device; it must be the path of a file"),
                             ("text", "text/out.npy", "cannot be written: ")):
        done = labkit("embed", str(tmp_path / file), "-o", str(tmp_path / out))
        assert done.exit_code == 2 and words in done.output, (done.output, done.exception)
    assert not (tmp_path / "out.npy").exists()
    assert labkit("embed", str(tmp_path / "text")).exit_code == 2  # --out is not left to chance


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no limit on the size of files")
def test_embed_says_why_the_disk_takes_no_more(labkit, encoder, tmp_path):
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))
    try:
        done = labkit("embed", "-", "-o", str(tmp_path / "out.npy"), input=b"one\n" * 1_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert done.exit_code == 2 and "out.npy cannot be written: File too large" in done.output


def test_embed_without_weights_says_how_to_get_them(labkit, tmp_path):
    (tmp_path / "text").write_text("one\n")
    done = labkit("embed", str(tmp_path / "text"), "-o", str(tmp_path / "out.npy"))
    assert done.exit_code == 2 and "`labkit weights minilm` fetches them" in done.output
    assert not (tmp_path / "out.npy").exists()


SLOW = """\
import sys, time
from labkit import cli
from labkit.cli import sentences
class Slow:
    def encode(self, texts, *, batch_size, progress):
        print("begun", flush=True)
        time.sleep(60)
sentences.loaded = lambda *arguments: Slow()
sys.argv = ["labkit", "embed", "text", "-o", "out.npy"]
cli.main()
"""


@pytest.mark.sweep
@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGINT for one process")
@pytest.mark.parametrize("before", [None, b"old"])
def test_ctrl_c_leaves_nothing_half_written(tmp_path, before):
    (tmp_path / "text").write_text("one\n")
    if before:
        (tmp_path / "out.npy").write_bytes(before)
    process = interrupts.popen([sys.executable, "-c", SLOW], cwd=tmp_path, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True,
                               env={**os.environ, "PYTHONPATH": str(REPOSITORY), "LABKIT_DEVICE": "cpu"})
    assert process.stdout.readline() == "begun\n"
    time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130 and "Stopped." in errors and "Traceback" not in errors
    assert sorted(path.name for path in tmp_path.iterdir()) == (["out.npy"] if before else []) + ["text"]
    assert before is None or (tmp_path / "out.npy").read_bytes() == before


# --- sts -------------------------------------------------------------------------------------------------------------


def test_pairs_are_judged_and_bad_lines_named(labkit, encoder, course_dir):
    (course_dir / "sts.csv").write_text("5.0\ta\ta\n1.0\ta\tbbbb\n3.0\ta\tab\n" + "x\ty\tz\n")
    done = labkit("sts", "sts.csv")
    assert done.exit_code == 0, done.output
    assert "Spearman's correlation over 3 pairs: 1.0000" in done.output
    assert "sts.csv: left out: line 4: the score is 'x', which is no number" in done.output
    (course_dir / "sts.csv").write_text("1.0\ta\ta\n1.0\ta\tb\n")
    assert "over 2 pairs: undefined" in labkit("sts", "sts.csv").output


def test_a_file_of_pairs_that_is_missing_is_named(labkit):
    done = labkit("sts", "none.csv")
    assert done.exit_code == 2 and "none.csv is not there" in done.output


# --- search ----------------------------------------------------------------------------------------------------------


def test_search_by_words_says_that_it_is(labkit):
    done = labkit("search", "why are there bank conflicts?")
    assert done.exit_code == 0, done.output
    assert "Second: The problem" in done.stdout and "notebooks/01_second.py:4" in done.stdout
    assert "Bank conflicts are rare." in done.stdout and "First" not in done.stdout
    assert "Found by words, not by meaning: `labkit weights minilm` fetches the encoder" in done.stderr
    assert labkit("search", "bank", "--words").stderr == ""
    done = labkit("search", "zebra")
    assert done.exit_code == 0 and "No passage shares a word with your query." in done.stderr
    assert labkit("search", "?").exit_code == 2


def test_search_explains_a_term_of_the_glossary_first(labkit, course_dir):
    add_term(courses.load(course_dir), "bank conflict", "Lanes that wait for one bank.")
    done = labkit("search", "what is a bank conflict", "--words")
    assert done.stdout.startswith("bank conflict  Lanes that wait for one bank.")
    assert "Second: The problem" in done.stdout
    assert "Lanes that wait" not in labkit("search", "bank conflict", "--words", "--json").stdout


def test_search_by_meaning_and_what_is_stale(labkit, encoder, course_dir, monkeypatch):
    done = labkit("search", "memory")
    assert "data/search.npz is missing" in done.stderr and "labkit build --search makes it" in done.stderr
    done = labkit("build", "--search")
    assert done.exit_code == 0 and "wrote   data/search.npz, 2 passages encoded" in done.output
    assert labkit("build", "--search").output == ""
    done = labkit("search", "the problem: a kernel waits for memory", "-n", "1")
    assert "First: The problem" in done.stdout and "Second" not in done.stdout and done.stderr == ""
    assert " 0.9" in done.stdout or " 1.0" in done.stdout
    found = json.loads(labkit("search", "memory", "--json").stdout)
    assert len(found) == 2
    assert set(found[0]) == {"score", "title", "file", "line", "page", "text"}
    assert {one["page"] for one in found} == {"00_first.html#the-problem", "01_second.html#the-problem"}
    assert {one["file"] for one in found} == {"notebooks/00_first.py", "notebooks/01_second.py"}
    monkeypatch.chdir(course_dir.parent)  # from elsewhere, in full
    assert f"{course_dir}/notebooks/00_first.py:" in labkit("search", "memory").stdout
    monkeypatch.chdir(course_dir)

    source = course_dir / "notebooks" / "00_first.py"
    source.write_text(source.read_text().replace("waits", "longs"))
    done = labkit("search", "memory")
    assert "is stale: 1 of 2 passages have changed; run labkit build --search" in done.stderr
    assert done.stdout.index("words  First: The problem") < done.stdout.index("Second")  # found by its words


def test_search_links_the_page_that_is_there(labkit, course_dir):
    page = course_dir / "build" / "site" / "01_second.html"
    page.parent.mkdir(parents=True)
    page.write_text("")
    assert "build/site/01_second.html#the-problem" in labkit("search", "bank").stdout


@pytest.fixture
def no_notebooks(monkeypatch):
    """labkit build without the lessons, whose cells take seconds."""
    monkeypatch.setattr(cli.lessons, "build_notebooks", lambda *arguments: False)
    monkeypatch.setattr("labkit.course.build.check", lambda course, chapters=None: [])


def test_build_keeps_the_index_fresh_and_check_says_when_it_is_not(labkit, encoder, no_notebooks, course_dir,
                                                                         monkeypatch):
    done = labkit("build")
    assert done.exit_code == 0 and "wrote   data/search.npz, 2 passages encoded" in done.output, done.output
    assert labkit("build", "--check").exit_code == 0
    source = course_dir / "notebooks" / "01_second.py"
    source.write_text(source.read_text().replace("rare", "dear"))
    monkeypatch.setenv("LABKIT_WEIGHTS", str(course_dir / "none"))
    done = labkit("build", "01")
    assert "left    data/search.npz" in done.output and "1 of 2 passages have changed" in done.output
    done = labkit("build", "--check")
    assert done.exit_code == 0 and "1 of 2 passages have changed" in done.stderr
    assert "Everything else that labkit build makes is fresh." in done.stdout
    done = labkit("build", "--search")
    assert done.exit_code == 2 and "`labkit weights minilm` fetches them" in done.output


def test_a_course_without_an_index_is_not_reminded_of_it(labkit, no_notebooks):
    done = labkit("build")
    assert done.exit_code == 0 and "search" not in done.output
    assert not search.index_path(courses.load(paths.find_root())).exists()
    assert "else" not in labkit("build", "--check").stdout
