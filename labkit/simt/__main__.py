"""Run a program with numba.cuda on the CPU: no GPU, no driver and no CUDA toolkit is needed.

  python -m labkit.simt [options] script.py [arguments]    as: python script.py [arguments]
  python -m labkit.simt [options] -m module [arguments]    as: python -m module [arguments]
  python -m labkit.simt [options] -c text   [arguments]    as: python -c text   [arguments]

numba.cuda and numba_cuda_mlir.cuda are replaced before the program's first import, installed or not, and in the Python
processes that it starts.

options
  --observe     observe every launch and report at the end: races, accesses out of bounds, barriers that some threads
                do not reach, reads of memory that nothing wrote. Exit code 1 if there are any and the program's is 0.
                For pytest there is a report for each test: pytest -p labkit.simt.pytest --cuda-observe
  --threads N   do not observe launches of more threads; 8,192 unless given
  --launches N  observe so many launches of a kernel; 50 unless given
  -h, --help    print this

for programs whose command cannot be changed
  python -m labkit.simt --enable     LABKIT_SIMT=1 does the same for every program of this environment from then on
  python -m labkit.simt --disable    undo it

LABKIT_CACHE_DIR, LABKIT_WORKERS, LABKIT_TIME_LIMIT and LABKIT_BOUNDS_CHECK are explained in labkit/simt/README.md.
"""

import atexit
import builtins
import contextlib
import io
import linecache
import os
import runpy
import signal
import sys
import types
from importlib.machinery import SourceFileLoader

from labkit.simt import stand_in
from labkit.simt.errors import end_at_launch
from labkit.simt.stand_in import environment

LIMITS = {"--threads": "most_threads", "--launches": "most_launches"}


def main(args):
    """The exit code, for what ends before a program runs; a program's own is raised as it raises it."""
    observe, limits, args = False, {}, list(args)
    while args and (args[0] in LIMITS or args[0] == "--observe"):
        option = args.pop(0)
        if option == "--observe":
            observe = True
        elif args and args[0].isdecimal():
            limits[LIMITS[option]] = int(args.pop(0))
        else:
            return _error(f"{option} needs a number")
    if not args or args[0] in ("-h", "--help"):
        print(__doc__.strip())
        return 0 if args else 2
    if args[0] in ("--enable", "--disable"):
        return _switch(args[0])
    if args[0] in ("-m", "-c") and len(args) == 1:
        return _error(f"{args[0]} needs a {'module' if args[0] == '-m' else 'text'}")
    if args[0].startswith("-") and args[0] not in ("-", "-m", "-c"):
        return _error(f"there is no option {args[0]}; see python -m labkit.simt --help")
    if args[0] not in ("-", "-m", "-c") and not os.path.exists(args[0]):
        return _error(f"can't open file {os.path.abspath(args[0])!r}: [Errno 2] No such file or directory")
    stand_in.install()
    environment.for_children()
    atexit.register(_end_interrupted)  # the first that is registered is the last that runs
    with _observed(limits) if observe else contextlib.nullcontext():
        _run(args)
    return 0


def _error(text):
    print(f"python -m labkit.simt: {text}", file=sys.stderr)
    return 2


def _switch(option):
    path = environment.pth()
    try:
        if option == "--disable":
            print(f"Removed {path}" if environment.disable() else f"There is no {path}")
        else:
            environment.enable()
            print(f"Wrote {path}\nPrograms of this environment use the CPU device where LABKIT_SIMT=1 is set.")
    except OSError as error:
        return _error(f"{path} cannot be {'removed' if option == '--disable' else 'written'} ({error.strerror}): use "
                      "a virtual environment, or python -m labkit.simt")  # fmt: skip
    return 0


# ---------------------------------------------------------------- the program


def _run(args):
    """Run `script args`, `-m module args`, `-c text args` or `-` in a __main__ of its own, as Python does."""
    first = args[0]
    sys.argv = args if first not in ("-m", "-c") else [first, *args[2:]]
    module = types.ModuleType("__main__")
    vars(module).update(__builtins__=builtins)
    sys.modules["__main__"] = module
    try:
        if first == "-m":
            runpy._run_module_as_main(args[1])
        elif first in ("-c", "-"):
            _set_first_entry("")
            text, name = (args[1], "<string>") if first == "-c" else (sys.stdin.read(), "<stdin>")
            linecache.cache[name] = len(text), None, text.splitlines(keepends=True), name  # kernels are read from it
            exec(compile(text, name, "exec"), vars(module))
        elif os.path.isdir(first) or not first.endswith((".py", ".pyw")) and _is_zip(first):
            runpy.run_path(first, run_name="__main__")
        else:
            path = os.path.abspath(first)
            _set_first_entry(os.path.dirname(os.path.realpath(first)))
            vars(module).update(__file__=path, __cached__=None, __loader__=SourceFileLoader("__main__", path))
            with io.open_code(path) as file:
                code = compile(file.read(), first, "exec")
            exec(code, vars(module))
    except SystemExit:
        raise
    except BaseException as error:
        _interrupted.append(error) if isinstance(error, KeyboardInterrupt) else None
        _leave_out_our_frames()
        raise


def _is_zip(path):
    import zipfile

    return zipfile.is_zipfile(path)


def _set_first_entry(folder):
    if not sys.flags.safe_path:
        sys.path[0] = folder


_interrupted = []
_OURS = {__file__, runpy.__file__, "<frozen runpy>"}


def _leave_out_our_frames():
    """The traceback that is printed begins with the program."""
    hook = sys.excepthook

    def show(kind, error, traceback):
        while traceback is not None and traceback.tb_frame.f_code.co_filename in _OURS:
            traceback = traceback.tb_next
        end_at_launch(error.with_traceback(traceback))
        hook(kind, error, traceback)

    sys.excepthook = show


def _end_interrupted():
    """After Ctrl-C, end as Python does: by the signal."""
    if _interrupted and hasattr(signal, "SIGINT") and os.name == "posix":
        sys.stdout.flush()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)


@contextlib.contextmanager
def _observed(limits):
    from labkit.simt.observer.launches import Watch

    ended = None
    with Watch(**limits) as watch:
        try:
            yield
        except SystemExit as error:
            ended = error
        finally:
            count = len(watch.found)
            verdict = f"{count} finding{'' if count == 1 else 's'}" if count else "nothing wrong was seen"
            report = "\n\n".join([f"labkit.simt: {watch.summary()}; {verdict}.", *map(str, watch.found)])
            print(report, file=sys.stderr)
    if watch.found and (ended is None or not ended.code):
        sys.exit(1)
    if ended is not None:
        raise ended


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
