"""The isolated side. It imports NumPy, Numba and labkit once, gives up what it can see, and then forks a process of its
own for each answer; that process gets the answer's text and inputs and gives arrays back. References, verdicts and
other submissions are never here.

Kinds of answer: a "kernel", of which only vetted statements run and whose launches may be observed; a "function", any
Python at all, of which nothing is believed but the arrays. What a function launches on the grader's device is a
"kernel", too, or "tiles", a vetted tile program, or a kernel of the "library", which the grader names.
"""

import ast
import contextlib
import json
import linecache
import os
import resource
import select
import signal
import socket
import sys
import tempfile
import time
from pathlib import Path

from labkit.course.grade import isolate, wire

ATTRIBUTES = ("filename", "line", "thread", "block", "array", "index", "shape", "kernel", "sentence")


def main() -> None:
    """Started by labkit.course.grade.sandbox with a socket on stdin: one JSON line of settings, then jobs."""
    control = socket.socket(fileno=os.dup(0))
    settings = json.loads(wire.line(control))
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    os.umask(0 if settings["isolation"] == "namespaces" else 0o022)  # the folder of its files is closed to others
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")  # the OOM killer takes these processes first
    if settings["warm"]:
        _warm()
    memory_used = resource.getpagesize() * int(Path("/proc/self/statm").read_text().split()[0]) if os.path.exists(
        "/proc/self/statm") else 4 << 30
    namespaced = settings["isolation"] == "namespaces"
    user = settings["uid"] if os.geteuid() == 0 else None  # None: stay who we are
    try:
        os.chmod(settings["cache"], 0o777)  # in a folder that no one else can enter
        if namespaced:
            own_user = isolate.enter(settings["stage"], settings["shown"], settings["hidden"], settings["cache"])
            _cache_in("/cache")
            user = None if own_user else user
    except (OSError, KeyError) as error:
        control.sendall(json.dumps({"ready": False, "why": str(error)}).encode() + b"\n")
        return
    control.sendall(json.dumps({"ready": True, "user": user is not None}).encode() + b"\n")
    while True:
        try:
            data, received, *_ = socket.recv_fds(control, 65536, 2)
        except OSError:
            return
        if not data:
            return  # the grader has ended, and so does this
        job = json.loads(data)
        lifeline, rpc = (socket.socket(fileno=fd) for fd in received)
        if os.fork() == 0:
            control.close()
            with contextlib.suppress(BaseException):
                _supervise(lifeline, rpc, job, memory_used, user, settings["shown"] if namespaced else None)
            os._exit(0)
        lifeline.close()
        rpc.close()
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def _cache_in(folder: str) -> None:
    """Compiled kernels, and what Numba compiles of labkit itself, are kept there."""
    os.environ["LABKIT_CACHE_DIR"], os.environ["NUMBA_CACHE_DIR"] = folder, f"{folder}/numba"
    if numba := sys.modules.get("numba"):
        numba.config.CACHE_DIR = f"{folder}/numba"


def _warm() -> None:
    """Import and start what every answer needs; of the course, only this package."""
    import numba
    import numpy  # noqa: F401

    import labkit
    from labkit import cuda, ptx, simt  # noqa: F401
    from labkit.course.grade import answers  # noqa: F401, before its files are hidden
    from labkit.simt.observer import observe  # noqa: F401

    # An answer's cells may still import and call these: here they do nothing.
    for name in ("check", "hint"):
        setattr(labkit, name, lambda *arguments, **keywords: None)
    numba.njit(lambda x: x + 1)(1)  # Numba makes its tables at the first compile


def _supervise(lifeline, rpc, job: dict, memory_used: int, user: int | None, shown: list[str] | None) -> None:
    """Fork the process that runs the answer; end it when the grader hangs up or the time is over; say how it ended.
    shown: what it may read, if it is in namespaces of its own, else None."""
    namespaced = shown is not None
    limits = isolate.Limits(**job["limits"])
    hostile = job["kind"] in ("function", "tiles")
    uid = None if user is None else user + (hostile and not namespaced)
    if namespaced:
        isolate.new_processes()
    child = os.fork()
    if child == 0:
        lifeline.close()
        try:
            os.setsid()
            if namespaced:
                isolate.private_mounts(limits, shown, shared_cache=not hostile)
                os.chdir("/tmp")
            else:
                folder = Path(tempfile.mkdtemp(dir=job["tmp"]))
                if uid is not None:
                    os.chown(folder, uid, uid)
                os.chdir(folder)
                os.environ["HOME"] = os.environ["TMPDIR"] = str(folder)
                if hostile:
                    _cache_in(str(folder / "kernels"))
            if not hostile:
                os.umask(0)  # what it compiles is for all workers, each of which has a user of its own
            isolate.confine(limits, memory_used, uid)
            _serve(rpc, job)
        finally:
            os._exit(0)
    rpc.close()
    deadline = time.monotonic() + job["wall_s"]
    status = None
    while status is None:
        pid, code = os.waitpid(child, os.WNOHANG)
        if pid:
            status = code
        elif select.select([lifeline], [], [], 0.05)[0] or time.monotonic() > deadline:
            break
    _end(child, uid, namespaced)
    if status is None:
        status = os.waitpid(child, 0)[1]
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    report = {"exit": os.waitstatus_to_exitcode(status), "cpu": usage.ru_utime + usage.ru_stime, "rss": usage.ru_maxrss}
    with contextlib.suppress(OSError):
        lifeline.sendall(json.dumps(report).encode() + b"\n")


def _end(child: int, uid: int | None, namespaced: bool) -> None:
    """The process and all that it has started. In a namespace of its own the first takes the rest with it."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(child, signal.SIGKILL)
    if namespaced:
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)
    if uid is not None:  # everything of that user
        pid = os.fork()
        if pid == 0:
            os.setresuid(uid, uid, uid)
            with contextlib.suppress(OSError):
                os.kill(-1, signal.SIGKILL)
            os._exit(0)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)


# --- In the process of the answer ----------------------------------------------------------------------------------


def _serve(rpc, job: dict) -> None:
    """Define the answer, then do as asked until the grader hangs up. An error of the cells is only passed on if they
    define the answer all the same: so it is in a notebook."""
    sys.path[:] = [path for path in sys.path if path not in ("", ".")]
    namespace: dict = {"__name__": "__main__", "__builtins__": __builtins__}
    text, _ = wire.receive(rpc)
    proxy = None
    try:
        if job["proxy"]:
            from labkit.course.grade import device_proxy

            proxy = device_proxy.install(rpc, namespace)
        raised = _define(job | text, namespace)
        if raised is not None and job["name"] not in namespace:
            raise raised
        answer = namespace.get(job["name"])
    except BaseException as error:
        wire.send(rpc, {"error": _described(error)})
        return
    raised = {} if raised is None else {"raised": _described(raised)}
    wire.send(rpc, {"defined": _kind_of(answer), "name": str(getattr(answer, "__name__", ""))[:80], **_where(answer),
                    **raised})
    while True:
        head, values = wire.receive(rpc)
        try:
            if proxy is not None:
                reply = _called_with_proxy(answer, head, values, proxy)
            else:
                reply = DO[head["do"]](answer, head, values)
        except BaseException as error:
            reply = {"error": _described(error)}, {}
        try:
            data = wire.encode(*reply)
        except (TypeError, RecursionError) as error:
            text = f"the result cannot be sent: {error}"[:300]
            data = wire.encode({"error": {"type": "TypeError", "text": text}}, {})
        rpc.sendall(data)


def _define(job: dict, namespace: dict) -> BaseException | None:
    """Run what the answer needs of the cells above, statement by statement, and the answer's cell, whatever fails.
    Return the first error."""
    from labkit.course.grade.answers import Program, vetted, vetted_tiles

    program = Program(job["name"], job["above"], job["answer"])
    files = (f"<above {job['file'][1:]}", job["file"])
    for file, text in zip(files, (program.above, program.answer), strict=True):
        linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    if job["kind"] == "kernel":
        parts = vetted(program)
    elif job["kind"] == "tiles":
        parts = vetted_tiles(program)
    elif job["kind"] == "library":
        parts = ("", program.answer)  # the grader's own line
    else:
        parts = (program.above, program.answer)
        namespace |= {"check": lambda *a, **k: None, "hint": lambda *a, **k: None, "display": lambda *a, **k: None}
    above, answer = (ast.parse(part) if isinstance(part, str) else part for part in parts)
    first_error = None
    for file, part in (*((files[0], ast.Module([statement], [])) for statement in above.body), (files[1], answer)):
        try:
            exec(compile(part, file, "exec", dont_inherit=True), namespace)
        except BaseException as error:
            first_error = first_error or error
    return first_error


def _kind_of(answer) -> str:
    name = type(answer).__name__
    known = {"NoneType": "none", "ellipsis": "none", "Kernel": "kernel", "DeviceFunction": "device",
             "ConfiguredKernel": "configured"}
    return known.get(name) or ("function" if callable(answer) else f"a {name[:40]}")


def _where(answer) -> dict:
    code = getattr(getattr(answer, "py_func", answer), "__code__", None)
    return {"file": str(getattr(code, "co_filename", ""))[:200], "line": int(getattr(code, "co_firstlineno", 0)),
            "function": str(getattr(code, "co_name", ""))[:80]}


@contextlib.contextmanager
def _as_asked(head: dict):
    from labkit.simt import thread_order, time_limit

    with thread_order(head.get("order", "forward")), time_limit(float(head.get("limit", 5.0))):
        yield


def _arguments(values: dict, device: list):
    import numpy as np

    from labkit import cuda

    return tuple(cuda.to_device(value) if on_device and isinstance(value, np.ndarray) else value
                 for value, on_device in zip(values["arguments"], device, strict=True))


def _changed(originals, current) -> dict:
    """Return the new values of the changed arguments, by index."""
    changed = {}
    for index, (old, new) in enumerate(zip(originals, current, strict=True)):
        if hasattr(new, "copy_to_host"):
            host = new.copy_to_host()
            if host.tobytes() != old.tobytes():
                changed[str(index)] = host
    return changed


def _launch(kernel, head: dict, values: dict):
    from labkit import cuda

    arguments = _arguments(values, head["device"])
    with _as_asked(head):
        kernel[values["configuration"]](*arguments)
        cuda.synchronize()
    return {}, _changed(values["arguments"], arguments)


def _observe(kernel, head: dict, values: dict):
    from dataclasses import asdict

    from labkit.simt.observer.observe import observe

    arguments = tuple(values["arguments"])
    with _as_asked(head):
        report = observe(kernel[values["configuration"]], *arguments)
    findings = {name: [asdict(finding) for finding in getattr(report, name)] for name in wire.FINDINGS}
    head = {"report": {"kernel": report.kernel, "grid": list(report.grid), "block": list(report.block), **findings,
                       "counts": report.counts, "lines": sorted(report.lines.items()),
                       "instructions": report.instructions, "arrays": list(report.arrays.items()),
                       "touched": [[name, space, thread, address, sorted(kinds)]
                                   for (name, space), cells in report.touched.items()
                                   for (thread, address), kinds in cells.items()]}}
    import numpy as np

    arrays = {str(k): v for k, v in enumerate(arguments) if isinstance(v, np.ndarray)}
    return json.loads(json.dumps(head, default=int)), arrays


def _called(function, head: dict, values: dict):
    import numpy as np

    arguments = _arguments(values, head["device"])
    originals = tuple(value.copy() if isinstance(value, np.ndarray) else value for value in values["arguments"])
    with _as_asked(head):
        value = function(*arguments)
    if hasattr(value, "copy_to_host"):
        value = value.copy_to_host()
    changed = _changed(originals, arguments)
    try:
        if isinstance(value, list | tuple):
            value = np.asarray(value)
        wire.pack(value, [])
    except (TypeError, ValueError):
        return {"opaque": type(value).__name__[:80]}, changed
    return {}, {**changed, "value": value}


def _called_with_proxy(function, head: dict, values: dict, proxy):
    """Call a function whose device is the grader's."""
    import numpy as np

    arguments = [value if described is None else proxy.as_argument(described)
                 for value, described in zip(values["arguments"], head["device"], strict=True)]
    originals = tuple(value.copy() if isinstance(value, np.ndarray) else value for value in values["arguments"])
    value = function(*arguments)
    changed = {str(k): new for k, (old, new) in enumerate(zip(originals, arguments, strict=True))
               if isinstance(old, np.ndarray) and old.tobytes() != new.tobytes()}
    if hasattr(value, "copy_to_host"):
        return {"returned": proxy.handle(value)}, changed
    with contextlib.suppress(TypeError, ValueError):
        wire.pack(value, [])
        return {}, {**changed, "value": value}
    return {"opaque": type(value).__name__[:80]}, changed


def _launch_on(kernel, head: dict, values: dict):
    """Launch it on parts of buffers, which may overlap."""
    def work(arguments):
        kernel[values["configuration"]](*arguments)

    return _on_buffers(work, head, values)


def _tiles_on(program, head: dict, values: dict):
    from labkit.kernels.libraries import cutile_model

    return _on_buffers(lambda arguments: cutile_model.launch(None, values["grid"], program, arguments), head, values)


def _on_buffers(work, head: dict, values: dict):
    """Call work(arguments) with device arrays in copies of the buffers that were sent. The changed values are
    the reply."""
    import numpy as np

    from labkit.simt.arrays import on_device

    buffers = []
    for data, alignment in zip(values["buffers"], values["begins"], strict=True):
        memory = np.empty(data.nbytes + 512, np.uint8)
        start = (alignment - memory.ctypes.data) % 256
        memory[start : start + data.nbytes] = data
        buffers.append(memory[start : start + data.nbytes])

    def decoded(value):
        if isinstance(value, tuple):
            return tuple(map(decoded, value))
        if not isinstance(value, list):
            return value
        _, buffer, offset, shape, strides, dtype = value
        return on_device(np.ndarray(shape, np.dtype(dtype), buffers[buffer], offset, strides))

    arguments = [decoded(value) for value in values["arguments"]]
    host = {k: value.copy() for k, value in enumerate(arguments) if isinstance(value, np.ndarray)}
    with _as_asked(head):
        work(arguments)
    changed = {f"buffer {k}": new for k, (old, new) in enumerate(zip(values["buffers"], buffers, strict=True))
               if old.tobytes() != new.tobytes()}
    return {}, changed | {f"argument {k}": arguments[k] for k, original in host.items()
                          if original.tobytes() != arguments[k].tobytes()}


DO = {"launch": _launch, "observe": _observe, "call": _called, "launch on": _launch_on, "tiles on": _tiles_on}


def _described(error: BaseException) -> dict:
    """An exception as data: its type's name, its text, its lines, and what a kernel's fault says of itself."""
    import traceback

    with contextlib.suppress(BaseException):
        frames = [[frame.filename[:200], frame.lineno] for frame in traceback.extract_tb(error.__traceback__)
                  if frame.filename.startswith("<")]
        facts = {}
        for name in ATTRIBUTES:
            value = getattr(error, name, None)
            if isinstance(value, str):
                facts[name] = value[:400]
            elif isinstance(value, int) and not isinstance(value, bool):
                facts[name] = value
            elif isinstance(value, tuple | list) and len(value) <= 8:
                facts[name] = [int(each) for each in value]
        if hasattr(error, "problem"):  # a CompileError
            facts |= {"problem": error.problem, "facts": error.facts}
        return {"type": type(error).__name__[:80], "text": str(error)[:4000], "frames": frames[-8:], "facts": facts}
    return {"type": "Exception", "text": ""}


if __name__ == "__main__":
    main()
