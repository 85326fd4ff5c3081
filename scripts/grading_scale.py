"""How long `labkit grade` takes for a class, and how its throughput grows with the workers.

    python scripts/grading_scale.py time --chapter 04         grade 300 made-up students: cold caches, then warm ones
    python scripts/grading_scale.py kill --chapter 04         the same, killed with SIGKILL half way, and resumed
    python scripts/grading_scale.py simulate                  3,000 answers on 1 to 16 workers of a dask cluster
    python scripts/grading_scale.py plot                      data/grading.png, from what was recorded

Everything is recorded in data/grading.json, which README quotes. `simulate` grades nothing: its judge sleeps as long as
an answer of the recorded run took. It shows what handing out the work costs, with more workers than there are cores.
"""

import argparse
import datetime
import functools
import json
import os
import platform
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
for place in (str(ROOT / "scripts"), str(ROOT)):
    if place not in sys.path:
        sys.path.insert(0, place)

import made_up_class  # noqa: E402, found beside this script

RECORD = ROOT / "data" / "grading.json"
FIGURE = ROOT / "data" / "grading.png"
STUDENTS, SEED = 300, 1
SIMULATED, SIMULATED_WORKERS = 3_000, (1, 2, 4, 8, 16)
SHARE = 16  # of the simulated answers: with fewer than so many workers only their share of them is handed out


def recorded(path: Path = RECORD) -> dict:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def record(path: Path, section: str, name: str, entry: dict) -> None:
    from labkit._common.files import write_text

    held = recorded(path)
    held.setdefault(section, {})[name] = entry
    write_text(path, json.dumps(held, indent=1) + "\n")


def machine() -> dict:
    return {"cores": len(os.sched_getaffinity(0)), "host": platform.machine(), "python": platform.python_version(),
            "date": datetime.date.today().isoformat()}


# --- Real classes --------------------------------------------------------------------------------------------------


class Class:
    """A made-up class in a new folder, with caches of its own, which are empty at first."""

    def __init__(self, chapter: str, students: int):
        self.folder = Path(tempfile.mkdtemp(prefix="labkit-class-"))
        self.made = made_up_class.make(self.folder / "class", chapter, students, SEED)
        self.out = self.folder / "out"
        self.journal = self.out / ".work" / "journal"
        self.environment = os.environ | {"LABKIT_CACHE_DIR": str(self.folder / "cache"), "COLUMNS": "100"}

    def start(self, workers: int) -> subprocess.Popen:
        command = [sys.executable, "-m", "labkit", "grade", str(self.folder / "class"), "--out", str(self.out),
                   "--secret", str(self.folder / "secret"), "--roster", str(self.folder / "roster.csv"),
                   "--workers", str(workers)]
        return subprocess.Popen(command, env=self.environment, cwd=ROOT)

    def kept(self) -> int:
        return len(list(self.journal.glob("*.json"))) if self.journal.is_dir() else 0

    def forget(self) -> None:
        """All verdicts; what was compiled stays."""
        for path in self.journal.glob("*.json"):
            path.unlink()

    def scores(self) -> list[dict]:
        return json.loads((self.out / "scores.json").read_text(encoding="utf-8"))["scores"]


def without_times(scores: list[dict]) -> list[dict]:
    return [{key: value for key, value in row.items() if key not in ("seconds", "file")} for row in scores]


def timed(one: Class, workers: int) -> dict:
    """A whole run: wall clock, CPU seconds of it and of all its processes, and how busy the machine was besides."""
    load, before, begin = os.getloadavg()[0], resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    process = one.start(workers)
    if process.wait() != 0:
        raise SystemExit(f"labkit grade ended with {process.returncode}")
    wall, after = time.monotonic() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"wall_s": round(wall, 1), "cpu_s": round(cpu, 1), "load_before": round(load, 1),
            "load_after": round(os.getloadavg()[0], 1)}


def surprises(one: Class) -> list[str]:
    """Right answers that did not pass, and wrong ones that did."""
    meant = {(m.student, m.exercise): m for m in one.made}
    found = []
    for row in one.scores():
        answer = meant[row["student"], row["exercise"]]
        if answer.right is not None and row["passed"] != answer.right:
            found.append(f"{answer.student} {answer.exercise} ({answer.kind}): {row['verdict']}: {row['headline']}")
    return found


def time_class(given) -> None:
    one = Class(given.chapter, given.students)
    print(f"{len(one.made)} answers in {one.folder}", flush=True)
    entry = {"students": given.students, "answers": len(one.made), "workers": given.workers, **machine()}
    entry["cold"] = timed(one, given.workers)
    scores = one.scores()
    entry["kinds"] = dict(Counter(answer.kind for answer in one.made))
    entry["programs"], entry["seconds"] = judged_once(one)
    entry["verdicts"] = dict(Counter(row["verdict"] for row in scores))
    entry["surprises"] = surprises(one)
    record(given.record, "classes", given.chapter, entry)
    one.forget()
    entry["warm"] = timed(one, given.workers)
    entry["same_scores"] = without_times(one.scores()) == without_times(scores)
    record(given.record, "classes", given.chapter, entry)
    print(json.dumps({key: value for key, value in entry.items() if key != "seconds"}, indent=1))


def judged_once(one: Class) -> tuple[int, list[float]]:
    """How many different answers there were, and how long the judge took for each."""
    from labkit.course import registry
    from labkit.course.grade.collect import collect
    from labkit.course.grade.tasks import plan

    tasks = plan(registry.load(), collect(one.folder / "class"), b"any secret does").tasks
    alike = {(task.student, task.exercise): task.alike for task in tasks}
    seconds = {alike[row["student"], row["exercise"]]: row["seconds"] for row in one.scores()
               if (row["student"], row["exercise"]) in alike}
    return len(seconds), sorted(seconds.values())


def kill_class(given) -> None:
    one = Class(given.chapter, given.students)
    print(f"{len(one.made)} answers in {one.folder}", flush=True)
    process = one.start(given.workers)
    while one.kept() < len(one.made) // 2 and process.poll() is None:
        time.sleep(0.2)
    process.send_signal(signal.SIGKILL)
    process.wait()
    time.sleep(3)  # its workers notice
    kept = {path.name: path.stat().st_mtime_ns for path in one.journal.glob("*.json")}
    resumed = timed(one, given.workers)
    again = sum(one.journal.joinpath(name).stat().st_mtime_ns != at for name, at in kept.items())
    scores = without_times(one.scores())
    one.forget()
    whole = timed(one, given.workers)
    entry = {"students": given.students, "answers": len(one.made), "workers": given.workers, **machine(),
             "kept_when_killed": len(kept), "judged_again": again, "resumed": resumed, "uninterrupted_warm": whole,
             "same_scores": without_times(one.scores()) == scores}
    record(given.record, "killed", given.chapter, entry)
    print(json.dumps(entry, indent=1))


# --- A cluster, simulated ------------------------------------------------------------------------------------------


def sleeper(settings, task, is_here: bool, version: str) -> dict:
    """In the place of the judge: sleeps as long as the task says, and grades nothing."""
    from labkit.course.grade.judge import plain_result

    time.sleep(float(task.answer.call))
    return plain_result("simulated", "simulated", "Nothing was graded.")


def simulate(given) -> None:
    from dask.distributed import LocalCluster

    from labkit.course.grade import batch
    from labkit.course.grade.answers import Answer
    from labkit.course.grade.judge import Settings
    from labkit.course.grade.tasks import Plan, Task
    from labkit.course.grade.workers import judge_with_dask

    seconds = recorded(given.record)["classes"][given.chapter]["seconds"]
    draw = random.Random(SEED)
    drawn = [draw.choice(seconds) / given.faster for _ in range(SIMULATED)]  # in this order, whatever the workers
    tasks = [Task(f"s{k}", Answer("simulated", (), repr(drawn[k])), f"key {k}", f"text {k}", f"program {k}")
             for k in range(SIMULATED)]
    entry = {"answers": SIMULATED, "chapter": given.chapter, "faster": given.faster,
             "mean_s": round(sum(drawn) / len(drawn), 4), "longest_s": round(max(drawn), 3), **machine()}
    for workers in given.counts:
        times: list[float] = []
        count = min(SIMULATED * workers // SHARE, SIMULATED)
        # Workers that only sleep need no processes of their own; all that is sent still goes through sockets.
        with (tempfile.TemporaryDirectory() as folder,
              LocalCluster(n_workers=workers, threads_per_worker=1, processes=False, protocol="tcp",
                           dashboard_address="127.0.0.1:0") as cluster):
            judged = functools.partial(judge_with_dask, address=cluster.scheduler_address, judge=sleeper)
            batch.run(Settings(Path(folder), b"none", "namespaces"), Plan(tasks[:count]), judged,
                      lambda task, result, was_kept, times=times: times.append(time.monotonic()))
        begin, end = count // 10, count * 9 // 10  # workers start in the first tenth, and run dry in the last
        rate = (end - begin) / (times[end] - times[begin])
        slept = sum(drawn[:count]) / count
        point = {"workers": workers, "answers_per_s": round(rate, 2), "verdicts": len(times),
                 "ideal_per_s": round(workers / slept, 2),
                 "load": round(os.getloadavg()[0], 1)}
        print(point, flush=True)
        points = recorded(given.record).get("simulated", {}).get("dask", {}).get("points", [])
        points = sorted([point, *(each for each in points if each["workers"] != workers)], key=lambda p: p["workers"])
        record(given.record, "simulated", "dask", {**entry, "points": points})


# --- The figure ----------------------------------------------------------------------------------------------------


def plot(given) -> None:
    from matplotlib import rc_context

    from labkit.measure.plots.style import BLUE, FAINT, GREY, STYLE, TEXT, grid_along, new_figure, panel_title

    held = recorded(given.record)["simulated"]["dask"]
    workers = [point["workers"] for point in held["points"]]
    rates = [point["answers_per_s"] for point in held["points"]]
    ideal = [point["ideal_per_s"] for point in held["points"]]
    figure, (ax,) = new_figure([2.9], "Answers handed out to a dask cluster (simulated)",
                               f"Answers a second over workers: {dict(zip(workers, rates, strict=True))}.")
    with rc_context(STYLE):
        ax.plot(workers, ideal, color=GREY, linewidth=1.4)
        ax.plot(workers, rates, "o-", color=BLUE)
        for count, rate, most in zip(workers, rates, ideal, strict=True):
            ax.annotate(f"{rate:.1f}  ({rate / most:.0%})", (count, rate), xytext=(7, -11), textcoords="offset points",
                        fontsize=8.5, color=TEXT[BLUE])
        ax.annotate("no time for handing out", (workers[-1], ideal[-1]), xytext=(-8, 0), textcoords="offset points",
                    ha="right", va="center", fontsize=8.5, color=FAINT)
        ax.set_xscale("log", base=2)
        ax.set_yscale("log", base=2)
        ax.set_xticks(workers, [str(count) for count in workers])
        ax.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        ax.set_xlim(0.9, 24)
        ax.set_ylim(0.6 * rates[0], 1.3 * ideal[-1])
        ax.set_xlabel("workers")
        ax.set_ylabel("answers a second")
        grid_along(ax, "both")
        box = ax.get_position()
        ax.set_position((box.x0, box.y0, box.width, 0.95 * box.height))
        faster = "" if held["faster"] == 1 else f", divided by {held['faster']:g}"
        panel_title(ax, f"Nothing is graded: for each answer a worker sleeps {held['mean_s']:.2f} s on average, as "
                        f"long as\none of chapter {held['chapter']} took{faster}. Load of the machine: up to "
                        f"{max(point['load'] for point in held['points']):.0f}")
    figure.save(FIGURE)
    print(FIGURE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = {"time": time_class, "kill": kill_class, "simulate": simulate, "plot": plot}
    parser.add_argument("what", choices=what)
    parser.add_argument("--chapter", default="04")
    parser.add_argument("--students", type=int, default=STUDENTS)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--faster", type=float, default=1.0, help="simulate: divide the times by this")
    parser.add_argument("--counts", type=int, nargs="+", default=SIMULATED_WORKERS, help="simulate: how many workers")
    parser.add_argument("--record", type=Path, default=RECORD)
    given = parser.parse_args()
    what[given.what](given)


if __name__ == "__main__":
    main()
