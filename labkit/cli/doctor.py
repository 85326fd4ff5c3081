"""The command for a machine in trouble: doctor."""

from typing import Annotated

import typer

from labkit.cli.shared import consoles


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
):
    """Say what this machine has, which device labkit uses and why, and how to mend what is wrong."""
    from labkit.device import doctor as physician

    console, _ = consoles()
    raise typer.Exit(physician.main(console, as_json=as_json))
