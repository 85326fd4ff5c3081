"""The grader's side of labkit.course.grade.child: starts the isolated side, gives it answers, asks them, ends them."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from labkit._common import paths
from labkit._common.errors import UserError
from labkit.course.grade import isolate, wire

ISOLATIONS = ("namespaces", "bwrap", "limits")
SHOWN = ("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/alternatives", "/etc/localtime")
HIDDEN_IN_COURSE = ("exercises", "check", "yours", "site")
HIDDEN_IN_REPOSITORY = ("solutions", "tests", "exercises", "work", "notebooks", "scripts", "course.toml", ".git",
                        ".labkit")
SLACK_S = 5  # by which the isolated side waits longer than the grader, who says what happened
START_S = 120  # Numba's import, on a machine that does other things


class SandboxError(Exception):
    """The isolated side could not be started or has ended."""


@dataclass(frozen=True)
class Places:
    """Where the isolated side works, and what it must not see. folder: an empty directory of its own."""

    folder: Path
    cache: Path  # compiled kernels of vetted answers, shared by all workers
    hidden: tuple[Path, ...] = ()


class Sandbox:
    """One isolated side. Answers run one after the other, each in a process of its own."""

    def __init__(self, places: Places, isolation: str, limits: isolate.Limits | None = None):
        if isolation not in ISOLATIONS:
            raise ValueError(f"isolation is {isolation!r}; it must be one of {', '.join(ISOLATIONS)}")
        self.places, self.isolation = places, isolation
        self.limits = limits or isolate.Limits()
        self.process = None
        self.as_user = False  # whether answers run as a user of their own
        # Of no other sandbox on the machine: a sandbox kills all leftover processes of its user.
        self.uid = isolate.FIRST_UID + 2 * secrets.randbelow(isolate.USERS)
        self._tainted = False

    def start(self, *, warm: bool = True) -> None:
        """SandboxError where the system refuses this isolation. warm: import what answers need."""
        stage = self.places.folder / "root"
        tmp = self.places.folder / "tmp"
        for folder in (stage, tmp, self.places.cache):
            folder.mkdir(parents=True, exist_ok=True)
        tmp.chmod(0o711)
        hidden = [str(path) for path in hidden_paths(self.places.hidden)]
        parent_socket, child_socket = socket.socketpair()
        boot = f"import sys; sys.path.insert(0, {str(paths.REPOSITORY)!r}); " \
               "from labkit.course.grade.child import main; main()"
        command = [sys.executable, "-I", "-c", boot]
        bwrap = self.isolation == "bwrap"
        if bwrap:
            command = [*_bwrap(shown_paths(), hidden, self.places.cache), *command]
        self.process = subprocess.Popen(command, stdin=child_socket, stdout=subprocess.DEVNULL,
                                        stderr=subprocess.DEVNULL, env=_environment(self.places.cache), cwd="/",
                                        start_new_session=True)
        child_socket.close()
        self.control = parent_socket
        uid = None if bwrap else self.uid
        settings = {"isolation": "namespaces" if self.isolation == "namespaces" else "limits", "uid": uid,
                    "warm": warm, "stage": str(stage), "shown": shown_paths(), "hidden": hidden,
                    "cache": str(self.places.cache)}
        self._tmp = "/tmp" if bwrap else str(tmp)
        try:
            parent_socket.sendall(json.dumps(settings).encode() + b"\n")
            reply = json.loads(wire.line(parent_socket, time.monotonic() + START_S))
        except (OSError, ValueError, wire.WireError):
            self.stop()
            raise SandboxError(f"the isolated side ({self.isolation}) did not start") from None
        if not reply["ready"]:
            self.stop()
            raise SandboxError(reply["why"])
        self.as_user = reply["user"]

    def stop(self) -> None:
        if self.process is None:
            return
        with contextlib.suppress(AttributeError, OSError):
            self.control.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(1)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.kill()
        self.process.wait()
        self.process = None
        shutil.rmtree(self.places.folder / "tmp", ignore_errors=True)

    def job(self, kind: str, program, file: str, wall_s: float, *, proxy: bool = False, beside: bool = False) -> Job:
        """Start a process for an answer. kind: "function", or a vetted kind: see child.py. proxy: whether its device
        is the grader's. beside: another process of the same answer runs."""
        if (self._tainted and not beside) or self.process is None or self.process.poll() is not None:
            # Without process IDs of its own an answer may have left something behind.
            self.stop()
            self.start()
            self._tainted = False
        self._tainted = beside and self._tainted or kind in ("function", "tiles") and self.isolation != "namespaces"
        lifeline, child_lifeline = socket.socketpair()
        rpc, child_rpc = socket.socketpair()
        limits = replace(self.limits, seconds=max(self.limits.seconds, int(wall_s)))
        job = {"kind": kind, "name": program.name, "file": file, "limits": asdict(limits),
               "wall_s": wall_s + SLACK_S, "proxy": proxy, "tmp": self._tmp}
        try:
            socket.send_fds(self.control, [json.dumps(job).encode()], [child_lifeline.fileno(), child_rpc.fileno()])
            wire.send(rpc, {"above": program.above, "answer": program.answer}, deadline=time.monotonic() + 10)
        except (OSError, wire.WireError):
            for each in (lifeline, rpc):
                each.close()
            self._tainted = True
            raise SandboxError("the isolated side has ended") from None
        finally:
            child_lifeline.close()
            child_rpc.close()
        return Job(lifeline, rpc, time.monotonic() + wall_s)


class Job:
    """A process that runs one answer."""

    def __init__(self, lifeline, rpc, deadline: float):
        self.lifeline, self.rpc = lifeline, rpc
        self.deadline = deadline
        self.ended: dict | None = None

    def ask(self, head: dict, values: dict) -> tuple[dict, dict]:
        """Send a request and wait for the reply, at most until the process's time is over. WireError."""
        wire.send(self.rpc, head, values, deadline=self.deadline)
        return self.hear()

    def hear(self) -> tuple[dict, dict]:
        return wire.receive(self.rpc, self.deadline)

    def end(self) -> dict:
        """End the process and all that it started. How it ended: {"exit": code or -signal, "cpu": s, "rss": KiB}."""
        if self.ended is None:
            self.ended = {}
            self.rpc.close()
            with contextlib.suppress(OSError, ValueError, wire.WireError):
                # The process may still be about to end by itself: how it does is worth a moment.
                line = wire.line(self.lifeline, time.monotonic() + 0.2)
                self.ended = json.loads(line)
            with contextlib.suppress(OSError, ValueError, wire.WireError):
                self.lifeline.shutdown(socket.SHUT_WR)
                if not self.ended:
                    self.ended = json.loads(wire.line(self.lifeline, time.monotonic() + 10))
            self.lifeline.close()
        return self.ended


def shown_paths() -> list[str]:
    """What the isolated side may read: Python, its packages, the system's libraries, and labkit."""
    candidates = [sys.prefix, sys.base_prefix, str(Path(sys.executable).parent.parent),
                  str(Path(os.path.realpath(sys.executable)).parent.parent), str(paths.PACKAGE), *SHOWN]
    return [path for path in dict.fromkeys(candidates) if os.path.exists(path) and path != "/"]


def hidden_paths(extra: tuple[Path, ...] = ()) -> list[Path]:
    """What it may not, even where it lies below something shown."""
    hidden = [paths.PACKAGE / "course" / name for name in HIDDEN_IN_COURSE]
    if paths.REPOSITORY.joinpath("course.toml").is_file():
        hidden += [paths.REPOSITORY / name for name in HIDDEN_IN_REPOSITORY]
    hidden += [Path(folder) for folder in os.environ.get("LABKIT_EXERCISES", "").split(os.pathsep) if folder]
    if course_file := os.environ.get("LABKIT_COURSE"):
        hidden.append(Path(course_file))
    return [path.resolve() for path in (*hidden, *extra) if path.exists()]


def _environment(cache: Path) -> dict[str, str]:
    """Nothing of the grader's own environment goes there."""
    single_threaded = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS",
                                     "LABKIT_WORKERS"), "1")
    return {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "HOME": "/tmp", "TMPDIR": "/tmp", "MPLBACKEND": "Agg",
            "LABKIT_DEVICE": "cpu", "LABKIT_CACHE_DIR": str(cache), "NUMBA_CACHE_DIR": str(cache / "numba"),
            "LABKIT_PROGRESS": "0", **single_threaded}


def _bwrap(shown: list[str], hidden: list[str], cache: Path) -> list[str]:
    command = ["bwrap", "--unshare-all", "--die-with-parent", "--new-session", "--ro-bind", "/usr", "/usr"]
    for link in ("/bin", "/sbin", "/lib", "/lib64", "/lib32"):
        if os.path.islink(link):
            command += ["--symlink", os.readlink(link), link]
        elif os.path.isdir(link):
            command += ["--ro-bind", link, link]
    command += ["--tmpfs", "/tmp"]  # before the paths shown: a virtual environment may be there
    for path in shown:
        command += ["--ro-bind", path, path]
    for path in hidden:
        if any(path.startswith(f"{each}/") for each in shown):
            command += ["--tmpfs", path] if os.path.isdir(path) else ["--ro-bind", "/dev/null", path]
    return [*command, "--dev", "/dev", "--proc", "/proc", "--bind", str(cache), str(cache),
            "--cap-drop", "ALL", "--"]


def best_isolation() -> str:
    """The strongest that works here: namespaces made by ourselves, else by bwrap, else limits alone."""
    for isolation in ISOLATIONS:
        if works(isolation):
            return isolation
    raise UserError("answers cannot be isolated on this system: labkit grade needs Linux or macOS")


@functools.cache
def works(isolation: str) -> bool:
    """Whether this system offers it: tried out."""
    if not sys.platform.startswith("linux") and isolation != "limits":
        return False
    if isolation == "bwrap" and shutil.which("bwrap") is None:
        return False
    with tempfile.TemporaryDirectory(prefix="labkit-grade-", ignore_cleanup_errors=True) as folder:
        sandbox = Sandbox(Places(Path(folder), Path(folder) / "cache"), isolation)
        try:
            sandbox.start(warm=False)
        except (SandboxError, OSError):
            return False
        sandbox.stop()
    return True


def describe(isolation: str, as_user: bool) -> str:
    """What was in force, in a sentence."""
    user = " under a user of its own" if as_user else ""
    if isolation == "limits":
        return (f"WEAK: each answer ran in a process of its own{user}, with limits on time, memory, processes and "
                "files, but this system offers no namespaces: it could read what you can read, and reach the network.")
    mechanism = "bwrap" if isolation == "bwrap" else "Linux namespaces"
    return (f"Each answer ran in a process of its own{user}, isolated by {mechanism}: no network, no file but "
            "Python and labkit's library (read-only, without references and answers), an empty folder of its own, and "
            "limits on time, memory, processes and files.")
