"""One answer: inputs drawn from a secret, the isolated run, the verdict. None of the answer's code runs here."""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import shutil
import tempfile
import time
import warnings
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from labkit._common.errors import UserError
from labkit.course.answer_cells import ended_after
from labkit.course.grade import isolate
from labkit.course.grade.answers import Answer, Program, Refused, numbers_of, program_of, vetted, vetted_tiles
from labkit.course.grade.device_server import DeviceServer, launched_elsewhere
from labkit.course.grade.remote import RemoteKernel
from labkit.course.grade.sandbox import Job, Places, Sandbox, SandboxError

WALL_S = 120.0  # for one answer, compiling included
KERNELS = 24  # that one function may launch: each has a process


@dataclass(frozen=True)
class Settings:
    """What every worker needs. folder: of the grader's own files. hidden: what no answer may see."""

    folder: Path
    secret: bytes
    isolation: str
    hidden: tuple[Path, ...] = ()
    wall_s: float = WALL_S
    limits: isolate.Limits = isolate.Limits()


def read_secret(path: Path) -> bytes:
    """The teacher's secret, made on first use, readable by its owner alone."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        secret = path.read_bytes().strip()
        if len(secret) < 16:
            raise UserError(f"--secret {path} holds {len(secret)} bytes; it must hold 16 or more. Delete it, and a "
                            "new one is made") from None
        return secret
    except OSError as error:
        raise UserError(f"--secret {path} cannot be written: {error.strerror}") from None
    secret = secrets.token_hex(32).encode()
    with os.fdopen(handle, "wb") as file:
        file.write(secret + b"\n")
        file.flush()
        os.fsync(file.fileno())
    return secret


def seed_of(secret: bytes, exercise: str, program: str) -> int:
    """The seed of the inputs: known only with the secret, and the same for equal programs (`program`: the digest).

    So equal answers get equal verdicts, whoever hands them in; and an answer that has in it what feedback showed of its
    inputs is another program, and gets others.
    """
    digest = hmac.new(secret, f"{exercise}\0{program}".encode("utf-8", "surrogatepass"), hashlib.sha256).digest()
    return int.from_bytes(digest[:4], "big") >> 1


class Judge:
    """Judges one answer after the other."""

    def __init__(self, settings: Settings):
        self.settings = settings
        settings.folder.mkdir(parents=True, exist_ok=True)
        settings.folder.chmod(0o700)
        spaces = settings.isolation == "namespaces"
        # Without namespaces another user must reach it by its path.
        work = Path(tempfile.mkdtemp(prefix="worker-", dir=settings.folder if spaces else None))
        work.chmod(0o711)
        places = Places(work, (settings.folder if spaces else work) / "kernels",
                        (*settings.hidden, settings.folder / "journal"))
        self.sandbox = Sandbox(places, settings.isolation, settings.limits)

    def close(self) -> None:
        self.sandbox.stop()
        shutil.rmtree(self.sandbox.places.folder, ignore_errors=True)

    def judge(self, exercise_name: str, answer: Answer) -> dict:
        """The verdict as data, as Verdict.result() has it."""
        begin = time.perf_counter()
        from labkit.course import exercises

        exercise = exercises.find(exercise_name)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                if exercise.kind == "predict":
                    result = self._prediction(exercise, answer)
                else:
                    result = self._computed(exercise, answer)
        except Refused as error:
            result = plain_result(exercise_name, "refused", "It cannot be graded as it stands.", str(error))
        result["seed"] = None  # inputs stay secret
        result["seconds"] = round(time.perf_counter() - begin, 3)
        return result

    def _prediction(self, exercise, answer: Answer) -> dict:
        from labkit.course.check import examine

        argument, numbers = numbers_of(answer)
        try:
            return examine(exercise, argument, numbers=numbers).result()
        except ValueError as error:  # a name that is not asked for
            raise Refused(str(error)) from None

    def _computed(self, exercise, answer: Answer) -> dict:
        program = program_of(answer)
        seed = seed_of(self.settings.secret, exercise.name, program.digest if program else "")
        if program is None:
            return self._examined(exercise, None, seed)
        result, late = self._tried(exercise, program, seed)
        # A second chance for what ran out of time as a whole: another process may have had the machine.
        return self._tried(exercise, program, seed)[0] if late else result

    def _tried(self, exercise, program: Program, seed: int) -> tuple[dict, bool]:
        from labkit.course.grade.remote import Connection, ProcessEnded, answer_from, show_source

        kind = "kernel" if exercise.kind == "kernel" else "function"
        file = f"<{exercise.name}>"
        if kind == "kernel":
            vetted(program)
        show_source(program, file)
        server, beside = None, []
        if kind == "function" and exercise.demand is not None:
            server = DeviceServer(program, lambda *request: self._beside(*request, file, beside))
        job, reply = self._job(kind, program, file, server)
        connection = Connection(job, file, server)
        try:
            error = _raised(connection, reply)
            if "error" in reply:
                if server is not None and server.refused:
                    raise Refused(server.refused)
                return self._not_defined(exercise, program, file, error), False
            refused_above = ""
            if server is not None:  # what the cells tried out is not the answer
                refused_above, server.refused = server.refused, ""
            remote = answer_from(reply, program, connection)
            if kind == "kernel" and reply.get("defined") == "kernel" and reply.get("file") not in (
                    file, f"<above {file[1:]}"):
                raise Refused(f"`{program.name}` is a kernel of a library; the answer is to be one of your own")
            result = self._examined(exercise, remote, seed)
            if server is not None and not result["passed"]:
                refused = server.refused or (refused_above if result["verdict"] == "raised" else "")
                if refused:
                    raise Refused(refused)
            if connection.why and not result["passed"]:
                result |= {"verdict": "raised", "headline": "Its process ended.", "details": [connection.why]}
            if error is not None:
                result["details"] = [*result["details"], ended_after(_in_a_line(error, file))]
            late = connection.late or any(one.late for one, _ in beside) or result["verdict"] == "never_ends"
            return result, late
        except ProcessEnded as error:
            return plain_result(exercise.name, "raised", "Its process ended.", str(error)), False
        finally:
            job.end()
            for _, each in beside:
                each.end()

    def _beside(self, kind: str, program: Program, file: str, beside: list):
        """A kernel or tile program that a function launches, in a process of its own. Raises Refused, and what defining
        it raises."""
        from labkit.course.grade.remote import Connection, RemoteTiles, answer_from, raise_here

        if len(beside) >= KERNELS:
            raise Refused(f"it launches more than {KERNELS} kernels, and no more are graded")
        if kind == "kernel":
            vetted(program)
        elif kind == "tiles":
            vetted_tiles(program)
        job, reply = self._job(kind, program, file, beside=True)
        connection = Connection(job, file)
        beside.append((connection, job))
        if "error" in reply:
            raise_here(reply["error"], file)
        if kind == "tiles" and reply.get("defined") == "function":
            return RemoteTiles(program.name, connection)
        kernel = answer_from(reply, program, connection)
        if kind == "tiles" or not isinstance(kernel, RemoteKernel):
            raise Refused(f"`{program.name}` is launched, and its cell defines no kernel of this name")
        return kernel

    def _job(self, kind: str, program: Program, file: str, server=None, beside: bool = False) -> tuple[Job, dict]:
        from labkit.course.grade import wire
        from labkit.course.grade.remote import Connection

        for attempt in (1, 2):
            try:
                job = self.sandbox.job(kind, program, file, self.settings.wall_s, proxy=server is not None,
                                       beside=beside)
                break
            except TypeError:
                raise Refused("the code above the answer is too long") from None
            except SandboxError:
                if attempt == 2 or beside:
                    raise
        try:
            reply, values = job.hear()
            if "ask" in reply and server is not None:  # cells above the answer may use the device, too
                connection = Connection(job, file, server)
                with launched_elsewhere():
                    reply, _ = connection.answer_until(*server.reply(reply, values))
        except wire.Late:
            reply = {"error": {"type": "HostTimeout"}}
        except wire.WireError:
            code = job.end().get("exit")
            reply = {"error": {"type": "ProcessEnded",
                               "text": "its process ended while the cells above the check ran"
                               + (f" (signal {-code})" if isinstance(code, int) and code < 0 else "")}}
        return job, reply if isinstance(reply, dict) else {}

    def _examined(self, exercise, answer, seed: int) -> dict:
        from labkit.course.check import examine

        with _remote_observe(), launched_elsewhere():
            return examine(exercise, answer, seed=seed).result()

    def _not_defined(self, exercise, program: Program, file: str, error: Exception) -> dict:
        """The answer's cell itself raised."""
        from labkit.course.check.diagnose.python_errors import learners_frame
        from labkit.course.check.words import quote_line

        name = type(error).__name__
        error_file, line = learners_frame(error, file)
        if getattr(error, "line", 0):  # a kernel's fault names its own
            error_file, line = getattr(error, "filename", file), error.line
        details = f"{name}: {error}" if str(error) else name
        result = plain_result(exercise.name, "raised", "The answer's cell raises an error.", details)
        if name == "HostTimeout":
            result["headline"], result["details"] = "The answer's cell never ends.", []
        if line and error_file == file:
            with suppress(Exception):
                result["details"].append(quote_line(file, line))
        return result


def _raised(connection, reply: dict) -> BaseException | None:
    """The error of the cells, as it was there."""
    from labkit.course.check.limits import HostTimeout

    described = reply.get("error", reply.get("raised"))
    if described is None:
        return None
    try:
        connection.raise_here(described)
    except (Exception, HostTimeout) as error:
        return error


def _in_a_line(error: BaseException, file: str) -> str:
    """ "NameError: name 'x' is not defined, line 3": of the answer's cell, where it is known."""
    from labkit.course.check.diagnose.python_errors import learners_frame

    message = f"{type(error).__name__}: {error}".split("\n")[0].rstrip(": ")
    error_file, line = learners_frame(error, file)
    return f"{message}, line {line}" if line and error_file == file else message


@contextmanager
def _remote_observe():
    """check looks labkit.observe up for each launch that it observes: within the block those of other processes too."""
    import labkit
    from labkit.course.grade import remote

    original, labkit.observe = labkit.observe, remote.observe
    try:
        yield
    finally:
        labkit.observe = original


def plain_result(exercise: str, kind: str, headline: str, *details: str) -> dict:
    """A verdict that no check has reached."""
    return {"kind": "check", "exercise": exercise, "passed": False, "verdict": kind, "headline": headline,
            "details": list(details), "table": None, "mistake": "", "where": "", "size": None, "seed": None,
            "seconds": 0.0}
