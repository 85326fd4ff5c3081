"""`labkit bench --share`: what `labkit bench` recorded on this machine, as one small file for a pull request.

    write(["softmax"])      measures nothing; (path, the text that says what the file holds and what to do with it)

The file holds what labkit.measure.validate.SHARED lists: the times of ladders, the GPU, its measured limits, versions,
dates. Series, kernels' resources and the texts of errors stay here, and so does what another machine recorded.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from labkit import device, measure
from labkit._common import paths
from labkit._common.errors import UserError
from labkit._common.files import read_json, write_text
from labkit.kernels.op import Op
from labkit.measure import validate
from labkit.measure.ops import HOMES, op
from labkit.measure.recorded import shared_folder

DIGITS = 8  # of numbers; a time has fewer that mean something


def write(ops: Sequence[str] = ()) -> tuple[Path, str]:
    """Write this GPU's file. ops: the operations in it; all that are recorded if empty. Returns its path, and what to
    tell the reader. Raises UserError where there is nothing to share."""
    if not device.on_gpu():
        raise UserError("there is no GPU here, and times of the CPU device are not shared: they show how much work "
                        "there is, not how fast a GPU does it")
    machine = measure.machine()
    name = f"{measure.slug(machine['device'])}.json"
    recorded = paths.MEASUREMENTS / name
    recording = shared(read_json(recorded) if recorded.is_file() else {"ops": {}}, machine, ops)
    if errors := validate.shared_problems(recording):
        raise UserError("this recording cannot be shared:\n" + "\n".join(errors))
    path = shared_folder() / name
    path.parent.mkdir(exist_ok=True)
    write_text(path, as_text(recording))
    return path, message_of(path, recording)


def shared(recording: Mapping, machine: Mapping, ops: Sequence[str] = ()) -> dict:
    """The ladders of a recording that this machine measured with the driver and the versions that it has now, reduced
    to what a shared file holds. What labkit no longer has is left out: operations, rungs, baselines, and
    sizes by other axes."""
    chosen = {name: [_ladder(ladder, op(name)) for ladder in ladders
                     if _same(ladder["machine"], machine) and ladder["size"].keys() == op(name).work.timed.keys()]
              for name, ladders in recording["ops"].items() if name in HOMES and (not ops or name in ops)}
    chosen = {name: ladders for name, ladders in chosen.items() if ladders}
    if missing := [name for name in ops if name not in chosen]:
        raise UserError(f"nothing of {', '.join(missing)} is recorded on this machine as it is now; first run `labkit "
                        f"bench {' '.join(missing)}`")
    if not chosen:
        raise UserError("nothing is recorded on this machine as it is now: first run `labkit bench`, which times "
                        "everything, or `labkit bench vector_add softmax` for these two")
    newest = max((ladder for ladders in chosen.values() for ladder in ladders), key=lambda one: one["machine"]["date"])
    return {"schema": validate.SCHEMA, "machine": _only(machine, validate.MACHINE), "limits": newest["limits"],
            "ops": chosen, "series": {}}


def _same(one: Mapping, other: Mapping) -> bool:
    """Whether both are one machine with the same driver and versions."""
    return all(one.get(key) == other.get(key) for key in validate.MACHINE if key != "date")


def _ladder(ladder: Mapping, operation: Op) -> dict:
    kinds = validate.kinds_of(operation)
    skipped = {name: why if validate.may_be_shared(why) else validate.NOT_TIMED
               for name, why in ladder.get("skipped", {}).items() if name in kinds}
    kept = {**_only(ladder, validate.LADDER), "machine": _only(ladder["machine"], validate.MACHINE),
            "limits": _only(ladder["limits"], validate.LIMITS), "skipped": skipped,
            "rows": [_only(row, validate.ROW) for row in ladder["rows"] if kinds.get(row["name"]) == row["kind"]]}
    return _rounded(kept)


def _only(values: Mapping, form: Mapping) -> dict:
    return {key: values.get(key) for key in form}


def _rounded(value):
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, Mapping):
        return {key: _rounded(inner) for key, inner in value.items()}
    return [_rounded(inner) for inner in value] if isinstance(value, list | tuple) else value


def as_text(recording: Mapping) -> str:
    """JSON with a line for each ladder: a second measurement of one operation changes its lines alone."""
    def compact(value) -> str:
        return json.dumps(value, separators=(",", ":"), allow_nan=False)

    ops = ",\n".join(f"{compact(name)}: [\n" + ",\n".join(map(compact, ladders)) + "]"
                     for name, ladders in recording["ops"].items())
    above = "".join(f"{compact(key)}: {compact(recording[key])},\n" for key in ("schema", "machine", "limits"))
    return f'{{{above}"ops": {{\n{ops}}},\n"series": {{}}}}\n'


def message_of(path: Path, recording: Mapping) -> str:
    """What the file holds and what to do with it."""
    return (f"Wrote {path}, {path.stat().st_size / 1000:,.0f} kB.\n"
            f"It holds {validate.described(recording)}: the times of rungs and of the libraries beside them, the GPU's "
            "measured limits, the versions of its driver, of Python and of the packages, and dates. It holds no name "
            "of yours or of this computer, and no path; it is text, so you can read it.\n"
            'To share it, commit this file alone and open a pull request: "A recording of your GPU" in CONTRIBUTING.md '
            "says how. Once it is merged, the course's pages show it to readers with this GPU.")
