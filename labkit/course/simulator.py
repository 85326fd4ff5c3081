"""The tables of labkit/simt/README.md: what was recorded of the CPU device.

programs: data/simt_programs.json, by scripts/programs.py, and data/peer_suite.json, by scripts/peer_suite.py
speed: data/measurements/simt/speed.json, by `labkit bench simt --kernels`
bugs: data/planted_bugs.json, by scripts/planted_bugs.py
"""

from __future__ import annotations

from labkit._common.files import read_json
from labkit._common.tables import to_markdown
from labkit.course.registry import Course

# How an item that did not pass is counted: a word of the record -> what the table says.
CAUSES = {
    "found": "for an error that it reports", "program": "for a fault of its own", "gpu": "for want of a GPU's library",
    "refused": "refused, with the reason", "wrong": "wrong or unexplained", "timeout": "not in time",
    "skipped": "skipped by itself",
}
NO_RECORD = "Nothing is recorded yet."


def programs(course: Course) -> str:
    """One row per program: what ran, what passed, why the rest did not, and the times beside Numba's simulator."""
    path = course.root / "data" / "simt_programs.json"
    if not path.is_file():
        return NO_RECORD
    record = read_json(path)
    rows = []
    for program in record["programs"]:
        counts, beside = dict(program["counts"]), program.get("simulator") or {}
        passed = counts.pop("passed", 0)
        rows.append([f"{program['name']}: {program['what']}", f"{passed} of {program['run']}",
                     "; ".join(f"{count} {CAUSES[cause]}" for cause, count in counts.items()),
                     f"{beside['simt_second']:.1f} and {beside['simulator']:.1f} s" if beside.get("items") else ""])
    table = to_markdown({"columns": ["Program", "passed", "the others", "here and in Numba's simulator"], "rows": rows})
    made = f"Recorded on {record['date']} by `scripts/programs.py`, which fetches them."
    return f"{table}\n\n{_peer_suite(course)}\n\n{made}"


def _peer_suite(course: Course) -> str:
    record = read_json(course.root / "data" / "peer_suite.json")
    counts = record["counts"]
    able = sum(counts.values()) - counts["gpu"] - counts["skipped"]
    return (f"Of numba-cuda {record['versions']['numba-cuda']}'s own tests of kernels and arrays {counts['passed']:,} "
            f"of {able:,} pass. Of the others {counts['refused']} are refused with the reason, {counts['accepted']} "
            f"expect an error that the CPU device does not raise, {counts['wrong']} give another result or another "
            f"message, and {counts['timeout']} run out of time. {counts['gpu']} more test GPU code.")


def speed(course: Course) -> str:
    """Kernels drawn by seed, compiled and warm, beside Numba's simulator in the same run."""
    path = course.root / "data" / "measurements" / "simt" / "speed.json"
    if not path.is_file():
        return NO_RECORD
    record = read_json(path)
    machine = record["machine"]
    rows = [[f"{ratio['threads']:,}", str(ratio["kernels"]),
             "the first launch" if ratio["how"] == "cold" else "later launches",
             f"{_ratio(ratio['wall']['median'])} ({_ratio(ratio['wall']['p25'])} to {_ratio(ratio['wall']['p75'])})"]
            for ratio in record["ratios"]]
    table = to_markdown({"columns": ["threads", "kernels", "", "times as fast as Numba's simulator"], "rows": rows})
    loops = record["loops"]
    plain = [loop["cpu"]["median"] for loop in loops if not loop["barriers"]]
    barriers = [loop["cpu"]["median"] for loop in loops if loop["barriers"]]
    launches = [loop["launch_us"]["median"] for loop in loops]
    busy = f", while other work kept it busy (a load of {machine['load']:.0f})" if machine["load"] > 2 else ""
    return (f"{table}\n\nMedians, with quartiles, on {machine['host']}{busy}, {machine['date']}. A first launch "
            f"compiles. Beside `numba.njit` of the same loop, written by hand, it takes {min(plain):.1f} to "
            f"{max(plain):.1f} times as long for {len(plain)} kernels without a barrier, and {min(barriers):.1f} "
            f"to {max(barriers):.1f} for {len(barriers)} with barriers. A later launch of one of these takes "
            f"{min(launches):.0f} to {max(launches):.0f} us. For a few threads the simulator is faster, since it "
            "compiles nothing.")


def _ratio(value: float) -> str:
    return f"{value:.2f}" if value < 1 else f"{value:.1f}" if value < 10 else f"{value:,.0f}"


def bugs(course: Course) -> str:
    """Small kernels with one bug each: what observe says, and what compute-sanitizer says."""
    path = course.root / "data" / "planted_bugs.json"
    if not path.is_file():
        return NO_RECORD
    record = read_json(path)
    rows = []
    for bug in record["bugs"]:
        found, other = bug["simt"], bug["compute_sanitizer"]
        here = "no" if found is None else _words(found["as"]) + (", with its line" if found["line_named"] else "")
        rows.append([bug["bug"], here, other if isinstance(other, str) else _tools(other)])
    table = to_markdown({"columns": ["The bug", "labkit.simt", "compute-sanitizer"], "rows": rows})
    on = f", compute-sanitizer on an {record['machine']['device']}" if "machine" in record else ""
    return (f"{table}\n\nBy `scripts/planted_bugs.py`, {record['date']}{on}. labkit.simt finds nothing in the same "
            "kernels without their bugs.")


def _words(kind: str) -> str:
    return "refused at the launch" if kind.endswith("Error") else kind.replace("_", " ")


def _tools(found: dict) -> str:
    if all("problem" in says for says in found.values()):
        return "the program does not end"
    finds = {tool: says for tool, says in found.items() if says.get("errors")}
    line = ", with its line" if any(says["line_named"] for says in finds.values()) else ""
    return ", ".join(sorted(finds)) + line if finds else "no"
