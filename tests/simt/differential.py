"""Runs random programs compiled and observed, compares them with an oracle, and makes a program that fails small.

    python -m tests.simt.differential 3000      that many programs of threads, and a tenth as many of blocks, on all
                                                cores; the result goes to data/random_programs.json
"""

import argparse
import datetime
import hashlib
import importlib.util
import json
import multiprocessing
import platform
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import llvmlite
import numba
import numpy as np

from labkit import observe
from tests.simt import random_blocks, random_programs, reference

THREADS = 40
TOGETHER = 15  # programs that share a compile
RECORD = Path(__file__).parents[2] / "data" / "random_programs.json"


def imported(source, folder):
    """A module of this source, in a file whose name tells nothing else: what is compiled of it can be kept."""
    file = Path(folder) / f"programs_{hashlib.sha256(source.encode()).hexdigest()[:16]}.py"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(source, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(file.stem, file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module  # where Numba's cache looks for it
    spec.loader.exec_module(module)
    return module


def ran(launch, arguments, outputs):
    """The outputs that a launch leaves, or the error that it ends with."""
    outputs = [output.copy() for output in outputs]
    try:
        report = launch(*(array.copy() for array in arguments), *outputs)
    except Exception as error:  # whatever it is, it is a difference
        return f"{type(error).__name__}: {error}"
    findings = getattr(report, "findings", [])
    return str(findings[0]) if findings else outputs


def difference(found, expected, rtol=0.0):
    """What is different, as text; empty if nothing is. Floats may differ by rtol."""
    if isinstance(found, str):
        return found
    for k, (one, other) in enumerate(zip(found, expected, strict=True)):
        is_float = other.dtype.kind == "f"
        places = np.argwhere(~np.isclose(one, other, rtol, rtol, equal_nan=True) if is_float else one != other)
        if len(places):
            place = tuple(map(int, places[0]))
            return f"output {k}, {place}: {one[place]!r}, and the oracle has {other[place]!r}"
    return ""


def of_programs(programs, folder):
    """{(program, way): difference} of programs of threads, against Numba's own compiler."""
    kernel = imported(random_programs.kernel_source(programs), folder).kernel[2, 32]
    oracle = imported(random_programs.oracle_source(programs), folder).oracle
    outputs = [np.zeros((THREADS, random_programs.COUNT), dtype) for dtype in (np.int64, np.float64)]
    found = {}
    for which, program in enumerate(programs):
        arguments = random_programs.inputs(np.random.default_rng(program.seed), THREADS)
        expected = ran(lambda *args, k=which: oracle(k, THREADS, *args), arguments, outputs)
        assert not isinstance(expected, str), f"{program.source()}\nis no program: {expected}"
        for way, launch in (("compiled", kernel), ("observed", lambda *args: observe(kernel, *args))):
            got = ran(lambda *args, k=which, run=launch: run(k, THREADS, *args), arguments, outputs)
            text = difference(got, expected)
            if text:
                found[program, way] = text
    return found


def of_blocks(programs, folder):
    """The same for programs of blocks, against the plain interpreter, which runs them in two orders of the threads: a
    program whose result depends on the order is none."""
    found = {}
    for program in programs:
        kernel = imported(program.source(), folder).kernel
        arguments, outputs = program.inputs()
        expected, again = (ran(lambda *args, seed=seed, program=program, kernel=kernel: reference.run(
            kernel, *program.launch, *args, seed=seed), arguments, outputs) for seed in (None, 1))
        text = difference(again, expected, 1e-5)
        assert not text and not isinstance(expected, str), f"{program.source()}\nis no program: {text or expected}"
        launch = kernel[program.launch]
        for way, run in (("compiled", launch), ("observed", lambda *args, launch=launch: observe(launch, *args))):
            text = difference(ran(run, arguments, outputs), expected, 1e-4)
            if text:
                found[program, way] = text
    return found


def smaller(program, folder):
    """The program less the statements without which it still fails."""
    k, left = 0, 60  # as many tries
    while left:
        candidate = program.without(k)
        if candidate is None:
            k += 1
            if k > 60:
                break
            continue
        left -= 1
        if of_programs([candidate], folder):
            program = candidate
        else:
            k += 1
    return program


def described(found, folder):
    """What a failing test prints: of each program its seed, what differs, and the source, as small as it gets."""
    parts = []
    for (program, way), text in found.items():
        if isinstance(program, random_programs.Program):
            program = smaller(program, folder)
        parts.append(f"seed {program.seed}, {way}: {text}\n{program.source()}")
    return "\n\n".join(parts)


def programs(seeds, length=5):
    return [random_programs.Generator(seed, length).program(f"p{seed}") for seed in seeds]


def blocks(seeds, size=4):
    return [random_blocks.Program(seed, size) for seed in seeds]


MAKE = {of_programs: programs, of_blocks: blocks}


def compared_seeds(compare, start, stop):
    """How many programs of these seeds differ, and what is printed of them."""
    with tempfile.TemporaryDirectory() as folder:
        found = compare(MAKE[compare](range(start, stop)), folder)
        return len({program.seed for program, _ in found}), described(found, folder) if found else ""


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("count", type=int)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    given = parser.parse_args(arguments)
    work = []  # (share of the whole when it is done, compare, first seed, seed after the last)
    for compare, count, together in ((of_programs, given.count, TOGETHER), (of_blocks, given.count // 10, 5)):
        ends = [min(start + together, count) for start in range(0, count, together)]
        work += [(end / count, compare, given.first + start, given.first + end)
                 for start, end in zip(range(0, count, together), ends, strict=True)]
    work = [part[1:] for part in sorted(work, key=lambda one: one[0])]
    failed, compared = 0, {of_programs: 0, of_blocks: 0}
    pool = ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn"))
    try:
        for (compare, _, stop), (differing, text) in zip(work, pool.map(compared_seeds, *zip(*work, strict=True)),
                                                         strict=True):
            failed += differing
            if text:
                print(text)
            compared[compare] = stop - given.first
            print(f"\r{compared[of_programs]} of {given.count} programs, {compared[of_blocks]} of "
                  f"{given.count // 10} of blocks", end="", flush=True)
        print()
    finally:  # stopped half-way, too: the record says how many there were
        pool.shutdown(wait=False, cancel_futures=True)
        versions = {"numba": numba.__version__, "llvmlite": llvmlite.__version__, "numpy": np.__version__,
                    "python": platform.python_version()}  # fmt: skip
        record = {"date": str(datetime.datetime.now(datetime.UTC).date()), "versions": versions,
                  "first_seed": given.first, "programs": compared[of_programs],
                  "programs_of_blocks": compared[of_blocks], "differences": failed}  # fmt: skip
        RECORD.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
