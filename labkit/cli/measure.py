"""The command for measuring: bench, and bench serve with a load of one's own."""

import contextlib
from typing import Annotated

import typer

from labkit._common.errors import UserError
from labkit.cli.shared import Device, choose_device, consoles, progress_bar

SERVE = "serve: with a load of your own, of any server that speaks OpenAI's API"


def bench(
    ops: Annotated[
        list[str] | None,
        typer.Argument(metavar="[OP]...", help="Operations such as matmul, series such as generation; or alone: simt, "
                                               "for the CPU device, and serve. All operations when left out.")
    ] = None,
    device: Device = None,
    out: Annotated[
        str | None, typer.Option("--out", help="Write there: a directory, or a file ending in .json.")
    ] = None,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="Few runs, nothing is written: on a GPU beside its recording, else small sizes."),
    ] = False,
    url: Annotated[
        str | None,
        typer.Option("--url", help="Of a server that runs, such as http://127.0.0.1:8000.", rich_help_panel=SERVE),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option("--model", help="Start a server of this model, as labkit serve takes it. With --url: which of its "
                                     "models.", rich_help_panel=SERVE),
    ] = None,
    api_key: Annotated[
        str | None,
        typer.Option("--api-key", envvar="LABKIT_API_KEY", show_envvar=False, rich_help_panel=SERVE,
                     help="With --url: if it asks for one. The environment variable LABKIT_API_KEY does the same."),
    ] = None,
    rate: Annotated[
        str | None,
        typer.Option("--rate", metavar="R[,R...]", rich_help_panel=SERVE,
                     help="Open loop: so many requests a second arrive, at random moments (Poisson); inf for all at "
                          "once. Several rates are measured one after the other."),
    ] = None,
    concurrency: Annotated[
        int | None,
        typer.Option("--concurrency", min=1, rich_help_panel=SERVE,
                     help="Closed loop: so many requests at a time, each as soon as another has ended. With --rate: at "
                          "most so many. 8 when both are left out."),
    ] = None,
    requests: Annotated[int, typer.Option("--requests", min=1, help="Of each run.", rich_help_panel=SERVE)] = 100,
    prompts: Annotated[
        str, typer.Option("--prompts", metavar="A-B", help="Tokens of a prompt, at random.", rich_help_panel=SERVE)
    ] = "16-64",
    outputs: Annotated[
        str, typer.Option("--outputs", metavar="A-B", help="Tokens of an output, at random.", rich_help_panel=SERVE)
    ] = "16-64",
    seed: Annotated[
        int, typer.Option("--seed", min=0, help="The same seed makes the same requests.", rich_help_panel=SERVE)
    ] = 0,
    slo: Annotated[
        str | None,
        typer.Option("--slo", metavar="ttft=200,itl=50", rich_help_panel=SERVE,
                     help="What a good request takes at most, in milliseconds: ttft, tpot, e2el, and itl, of which 99% "
                          "of its tokens must be no later. Goodput counts good requests."),
    ] = None,
    timeout: Annotated[
        float, typer.Option("--timeout", min=0.1, help="Seconds for an answer.", rich_help_panel=SERVE)
    ] = 600.0,
):
    """Time every rung of every operation, beside NumPy and the libraries that are installed.

    serve measures a server as its clients see it. Without one of its options it is a series: this machine's engine
    behind its API, beside the same engine without. With --url, --model, --rate or --concurrency the load is yours.

    For example: labkit bench serve --url http://127.0.0.1:8000 --rate 1,2,4 --slo ttft=200,itl=50
    """
    choose_device(device)
    ops = ops or []
    if ops == ["simt"]:
        from labkit.measure.series import simt as measure_simt

        raise typer.Exit(measure_simt.main(consoles()[0]) or 0)
    from labkit.measure import bench as measure
    from labkit.measure.ops import HOMES, hint

    load_options = [option for option, value in (("--url", url), ("--model", model), ("--rate", rate),
                                                 ("--concurrency", concurrency)) if value is not None]
    if load_options and ops != ["serve"]:
        raise UserError(f"{load_options[0]} is for serve alone: labkit bench serve")
    if load_options:
        if quick:
            raise UserError("--quick is not for a load of your own; --requests says how many there are")
        raise typer.Exit(serve(out, slo, url=url, model=model, key=api_key, rate=rate, concurrency=concurrency,
                               requests=requests, prompts=prompts, outputs=outputs, seed=seed, timeout_s=timeout))
    for op in ops:
        if op == "simt":
            raise UserError("simt is timed alone: labkit bench simt")
        if op not in ("all", *HOMES, *measure.SERIES):
            names = ("all", "simt", *HOMES, *measure.SERIES)
            raise UserError(f"there is no operation {op!r}; {hint(op, names)}")
    try:
        measure.places(out)
    except ValueError as error:
        raise UserError(str(error)) from None
    raise typer.Exit(measure.main(ops=ops, out=out, quick=quick) or 0)


def serve(out: str | None, slo: str | None, *, rate: str | None, prompts: str, outputs: str, concurrency: int | None,
          **options) -> int:
    """A load of one's own; the exit code."""
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
                           description=f"{phase.name}: {state.in_flight:,} under way{failed}")

            yield watch

    return command.main(plan, out, progress=progress, status=notes.status,
                        show=lambda text: console.print(text, markup=False, soft_wrap=True),
                        note=lambda text: notes.print(text, style="dim", markup=False, soft_wrap=True))
