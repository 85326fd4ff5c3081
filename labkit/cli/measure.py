"""The command for measuring: bench."""

from typing import Annotated

import typer

from labkit.cli.shared import Device, choose_device, consoles


def bench(
    ops: Annotated[
        list[str] | None,
        typer.Argument(metavar="[OP]...", help="Operations such as matmul, series such as generation; or simt alone, "
                                               "for the CPU device. All operations when left out.")
    ] = None,
    device: Device = None,
    out: Annotated[
        str | None, typer.Option("--out", help="Write there: a directory, or a file ending in .json.")
    ] = None,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="Few runs, nothing is written: on a GPU beside its recording, else small sizes."),
    ] = False,
):
    """Time every rung of every operation, beside NumPy and the libraries that are installed."""
    choose_device(device)
    ops = ops or []
    if ops == ["simt"]:
        from labkit.measure.series import simt as measure_simt

        raise typer.Exit(measure_simt.main(consoles()[0]) or 0)
    from labkit._common.errors import UserError
    from labkit.measure import bench as measure
    from labkit.measure.ops import HOMES

    for op in ops:
        if op == "simt":
            raise UserError("simt is timed alone: labkit bench simt")
        if op not in ("all", *HOMES, *measure.SERIES):
            raise UserError(f"there is no operation {op!r}; there are {', '.join(HOMES)}, all and simt; and the series "
                            f"{', '.join(measure.SERIES)}")
    try:
        measure.places(out)
    except ValueError as error:
        raise UserError(str(error)) from None
    raise typer.Exit(measure.main(ops=ops, out=out, quick=quick) or 0)
