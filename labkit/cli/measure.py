"""The command for measuring: bench, and bench serve with a custom load."""

import contextlib
import os
from pathlib import Path
from typing import Annotated

import typer

from labkit._common.errors import UserError
from labkit.cli.shared import Device, choose_device, consoles, progress_bar

SERVE = "serve: put your own load on any server with OpenAI's API"


def bench(
    ops: Annotated[
        list[str] | None,
        typer.Argument(metavar="[OP]...", help="Operations such as matmul, or series such as generation; or, by "
                                               "themselves, simt (the CPU device) or serve. All operations by default.")
    ] = None,
    device: Device = None,
    out: Annotated[
        str | None, typer.Option("--out", help="Where to write: a directory, or a file ending in .json.")
    ] = None,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="Few runs; write nothing. On a GPU, compare with its recording; else use small "
                                     "sizes."),
    ] = False,
    share: Annotated[
        bool,
        typer.Option("--share", help="Measure nothing; write what is recorded of OP on this GPU to one file that you "
                                     "can contribute. It names neither you nor this machine."),
    ] = False,
    check: Annotated[
        str | None,
        typer.Option("--check", metavar="FILE", help="Measure nothing; say whether FILE, as --share writes it, can be "
                                                     "contributed, and if not, why."),
    ] = None,
    kernels: Annotated[
        str | None,
        typer.Option("--kernels", metavar="N[,N,N]", help="With simt: how many kernels to compare with Numba's "
                                                          "simulator, at 64, 1,024 and 4,096 threads. 200,50,25 take "
                                                          "a quarter of an hour."),
    ] = None,
    url: Annotated[
        str | None,
        typer.Option("--url", help="A running server, such as http://127.0.0.1:8000.", rich_help_panel=SERVE),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option("--model", help="Start a server with this model, as for labkit serve. With --url: which of the "
                                     "server's models to use.", rich_help_panel=SERVE),
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option("--dtype", metavar="TYPE", help="The data type of that model, as for labkit serve.",
                     rich_help_panel=SERVE),
    ] = None,
    api_key: Annotated[
        str | None,
        typer.Option("--api-key", envvar="LABKIT_API_KEY", show_envvar=False, rich_help_panel=SERVE,
                     help="With --url: the server's key. You can also set the environment variable LABKIT_API_KEY."),
    ] = None,
    rate: Annotated[
        str | None,
        typer.Option("--rate", metavar="R[,R...]", rich_help_panel=SERVE,
                     help="Open loop: requests per second, arriving at random times (Poisson); inf sends all of them "
                          "immediately. Several rates are measured one after another."),
    ] = None,
    concurrency: Annotated[
        int | None,
        typer.Option("--concurrency", min=1, rich_help_panel=SERVE,
                     help="Closed loop: requests in flight; when one ends, the next starts. With --rate, the maximum. "
                          "8 if neither is given."),
    ] = None,
    requests: Annotated[int, typer.Option("--requests", min=1, help="Requests per run.", rich_help_panel=SERVE)] = 100,
    prompts: Annotated[
        str, typer.Option("--prompts", metavar="A-B", help="Random prompt length in tokens.", rich_help_panel=SERVE)
    ] = "16-64",
    outputs: Annotated[
        str, typer.Option("--outputs", metavar="A-B", help="Random output length in tokens.", rich_help_panel=SERVE)
    ] = "16-64",
    seed: Annotated[
        int, typer.Option("--seed", min=0, help="The same seed gives the same requests.", rich_help_panel=SERVE)
    ] = 0,
    slo: Annotated[
        str | None,
        typer.Option("--slo", metavar="ttft=200,itl=50", rich_help_panel=SERVE,
                     help="Limits for a good request, in milliseconds: ttft, tpot, e2el, and itl, which 99% of its "
                          "tokens must meet. Goodput counts good requests."),
    ] = None,
    timeout: Annotated[
        float, typer.Option("--timeout", min=0.1, help="Seconds to wait for an answer.", rich_help_panel=SERVE)
    ] = 600.0,
):
    """Time every rung of every operation, and NumPy and the installed libraries for comparison.

    serve measures a server as its clients see it. By default it is a series: this machine's engine with and without its
    API. With --url, --model, --rate or --concurrency, you choose the load.

    For example: labkit bench serve --url http://127.0.0.1:8000 --rate 1,2,4 --slo ttft=200,itl=50
    """
    if check is not None:
        raise typer.Exit(check_file(Path(check)))
    choose_device(device)
    if os.environ.get("LABKIT_PRETEND") and not quick:
        raise UserError("LABKIT_PRETEND is set: kernels are those of another GPU, whose times are not recorded; unset "
                        "it, or add --quick")
    ops = ops or []
    if share:
        if out is not None or quick:
            raise UserError(f"--share measures nothing; leave out {'--quick' if quick else '--out'}")
        raise typer.Exit(share_recording(ops))
    if ops == ["simt"]:
        raise typer.Exit(time_cpu_device(kernels))
    if kernels is not None:
        raise UserError("--kernels is only for simt: labkit bench simt --kernels 20")
    from labkit.measure import bench as measure
    from labkit.measure.ops import HOMES, hint

    load_options = [option for option, value in (("--url", url), ("--model", model), ("--dtype", dtype),
                                                 ("--rate", rate), ("--concurrency", concurrency)) if value is not None]
    if load_options and ops != ["serve"]:
        raise UserError(f"{load_options[0]} is only for serve: labkit bench serve")
    if load_options:
        if quick:
            raise UserError("--quick does not work with a custom load; set the number of requests with --requests")
        raise typer.Exit(serve(out, slo, url=url, model=model, dtype=dtype, key=api_key, rate=rate,
                               concurrency=concurrency, requests=requests, prompts=prompts, outputs=outputs, seed=seed,
                               timeout_s=timeout))
    for op in ops:
        if op == "simt":
            raise UserError("simt must be timed by itself: labkit bench simt")
        if op not in ("all", *HOMES, *measure.SERIES):
            names = ("all", "simt", *HOMES, *measure.SERIES)
            raise UserError(f"there is no operation {op!r}; {hint(op, names)}")
    try:
        measure.places(out)
    except ValueError as error:
        raise UserError(str(error)) from None
    raise typer.Exit(measure.main(ops=ops, out=out, quick=quick) or 0)


def time_cpu_device(kernels: str | None) -> int:
    """Time the CPU device: against the clock, and with --kernels against Numba's simulator. Returns the exit code."""
    from labkit.measure.series import simt, simt_speed

    if kernels is None:
        return simt.main(consoles()[0]) or 0
    try:
        return simt_speed.main(kernels, consoles()[0])
    except ValueError as error:
        raise UserError(str(error)) from None


def share_recording(ops: list[str]) -> int:
    """Write what is recorded of these operations on this GPU, and say what is in the file. Returns the exit code."""
    from labkit.measure import share
    from labkit.measure.ops import HOMES, hint

    for op in ops:
        if op not in HOMES:
            raise UserError(f"only operations are shared, and there is no operation {op!r}; {hint(op, HOMES)}")
    _, text = share.write(ops)
    consoles()[0].print(text, markup=False, highlight=False, soft_wrap=True)
    return 0


def check_file(file: Path) -> int:
    """Say whether a file can be shared. Returns the exit code."""
    from labkit.measure import validate

    try:
        recording = validate.read_shared(file)
    except ValueError as error:
        raise UserError(f"{file} cannot be shared:\n{error}") from None
    consoles()[0].print(f"{file} can be shared: {validate.described(recording)}", markup=False, highlight=False,
                        soft_wrap=True)
    return 0


def serve(out: str | None, slo: str | None, *, rate: str | None, prompts: str, outputs: str, concurrency: int | None,
          **options) -> int:
    """Run a custom load and return the exit code."""
    from labkit.measure.serving import command, load

    rates = load.rates(rate) if rate is not None else []
    plan = command.Plan(rates=rates, concurrency=concurrency if rates or concurrency else 8, slo=load.Slo.of(slo),
                        prompts=load.span("--prompts", prompts), outputs=load.span("--outputs", outputs), **options)
    console, notes = consoles()

    @contextlib.contextmanager
    def progress(phase):
        with progress_bar(notes, "requests") as bar:
            task = bar.add_task(phase.name, total=len(phase.work))

            def watch(state):
                failed = f", {state.failed:,} failed" if state.failed else ""
                bar.update(task, completed=state.ended,
                           description=f"{phase.name}: {state.in_flight:,} in flight{failed}")

            yield watch

    return command.main(plan, out, progress=progress, status=notes.status,
                        show=lambda text: console.print(text, markup=False, soft_wrap=True),
                        note=lambda text: notes.print(text, style="dim", markup=False, soft_wrap=True))
