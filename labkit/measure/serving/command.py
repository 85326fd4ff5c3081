"""`labkit bench serve` with a load of one's own: a server that runs somewhere, or one that is started for it."""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path

from labkit import measure
from labkit._common import paths
from labkit._common.errors import UserError
from labkit._common.files import write_text
from labkit.measure.serving import results, server
from labkit.measure.serving.drive import Run, Seen, Target, drive
from labkit.measure.serving.load import Load, Slo, random_work

SCHEMA = 1
BUILD = paths.REPOSITORY / "build" / "bench"
IGNORE_END = {"ignore_eos": True}  # a field that vLLM added to the API: outputs are as long as they were asked for
Progress = Callable[[Load], AbstractContextManager[Callable[[Seen], None]]]


@dataclass(frozen=True)
class Plan:
    """A measurement. url: of a server; None: one is started that serves `model` in `dtype`. rates: each is a run of its
    own; none: `concurrency` requests at a time. key: of the server's API."""

    url: str | None = None
    model: str | None = None
    dtype: str | None = None
    key: str | None = None
    rates: Sequence[float] = ()
    concurrency: int | None = None
    requests: int = 100
    prompts: tuple[int, int] = (16, 64)
    outputs: tuple[int, int] = (16, 64)
    seed: int = 0
    slo: Slo = field(default_factory=Slo)
    timeout_s: float = 600.0

    def loads(self) -> list[Load]:
        work = random_work(self.requests, self.prompts, self.outputs, seed=self.seed)
        return [Load(work, rate, self.concurrency, self.seed) for rate in self.rates or (None,)]


def places(out: str | None) -> tuple[Path, Path]:
    """The JSON file and the figure. Raises UserError for where nothing can be written, before anything is measured."""
    path = BUILD / "serve.json" if out is None else Path(out) if out.endswith(".json") else Path(out) / "serve.json"
    if paths.MEASUREMENTS in (path.resolve().parent, *path.resolve().parents):
        raise UserError(f"--out {out} lies in data/measurements, which holds what `labkit bench serve` without a load "
                        f"of your own records on a GPU")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--out {path} cannot be written: {error.strerror}") from None
    if path.is_dir() or not os.access(path.parent, os.W_OK):
        raise UserError(f"--out {path} cannot be written")
    return path, path.with_suffix(".png")


def main(plan: Plan, out: str | None, *, show: Callable[[str], None], note: Callable[[str], None],
         progress: Progress, status: Callable[[str], AbstractContextManager]) -> int:
    """Measure, print, write; return the exit code. show: for the results, note: for remarks on them; progress and
    status: shown while a load runs, and while something else does."""
    path, figure = places(out)
    with contextlib.ExitStack() as stack:
        with status("Looking at the server" if plan.url else f"Starting a server of {plan.model}"):
            target = stack.enter_context(target_of(plan))
            target = first_answer(target, plan)
        note(f"{target.model} at {target.url}")
        result = measured(plan, target, show, progress)
    write_text(path, json.dumps(result, indent=1, allow_nan=False) + "\n")
    written = [path]
    if any(run["completed"] for run in result["runs"]):
        from labkit.measure.plots import serve as plots

        written.append(plots.load(result).save(figure))
    note("Wrote " + ", ".join(paths.shown(each) for each in written))
    if result["runs"][-1]["stopped"]:
        return 130
    return 0 if all(run["completed"] for run in result["runs"]) else 1


@contextlib.contextmanager
def target_of(plan: Plan) -> Iterator[Target]:
    if plan.url is not None and plan.dtype is not None:
        raise UserError(f"--dtype {plan.dtype} is for a server that is started here; that at {plan.url} runs already")
    if plan.url is not None:
        url = plan.url.rstrip("/").removesuffix("/v1")
        yield Target(url, plan.model or server.first_model(url, plan.key), plan.key, IGNORE_END)
        return
    options = ["--model", plan.model or "tiny-llama", *(["--dtype", plan.dtype] if plan.dtype else [])]
    with server.running(options) as started:
        yield Target(started.url, server.first_model(started.url), None, IGNORE_END)


def first_answer(target: Target, plan: Plan) -> Target:
    """Return the target in the form that answers, after one unmeasured request of the load, which warms it up. A
    server that does not know ignore_eos is asked without it. Raise UserError if none is answered."""
    load = Load(plan.loads()[0].work[:1], concurrency=1)
    for each in (target, replace(target, body={})):
        run = drive(load, each, timeout_s=plan.timeout_s)
        if run.stopped:
            raise KeyboardInterrupt
        failure = next((one for one in run.records if one["error"]), None)
        if failure is None:
            return each
        if "ignore_eos" not in failure["detail"]:
            break
    raise UserError(f"{target.url} does not answer a first request: {failure['error']}: {failure['detail']}")


def measured(plan: Plan, target: Target, show: Callable[[str], None], progress: Progress) -> dict:
    """All runs of the plan, as they are written; after Ctrl-C those until then."""
    runs = []
    for load in plan.loads():
        with progress(load) as watch:
            run = drive(load, target, timeout_s=plan.timeout_s, watch=watch)
        result = of_run(run, plan.slo)
        runs.append(result | {"requests": results.columns(run.records)})
        show(results.report(result))
        for line in results.notes(result):
            show(line)
        if run.stopped:
            break
    settings = {"prompts": list(plan.prompts), "outputs": list(plan.outputs), "seed": plan.seed,
                "slo_ms": plan.slo.limits_ms, "timeout_s": plan.timeout_s, "body": target.body}
    return measure.stamped({"schema": SCHEMA, "machine": measure.machine(), "url": target.url, "model_id": target.model,
                            "settings": settings, "runs": runs})


def of_run(run: Run, slo: Slo | None = None) -> dict:
    """A run as it is written, with vLLM's names."""
    load = run.load
    rate = "inf" if load.rate is not None and math.isinf(load.rate) else load.rate
    return {"name": load.name, "request_rate": rate, "max_concurrency": load.concurrency, "num_prompts": len(load.work),
            "stopped": run.stopped, "client_lag_ms": run.client_lag_ms,
            **results.summary(run.records, run.seconds, slo)}
