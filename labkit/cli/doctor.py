"""The command for a machine in trouble: doctor."""

import contextlib
from typing import Annotated

import typer

from labkit._common.errors import UserError
from labkit.cli.shared import consoles, say_next


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
):
    """Show what this machine has, which device labkit uses and why, and how to fix any problems."""
    from labkit.course import next_step
    from labkit.course import registry as courses
    from labkit.device import doctor as physician

    console, _ = consoles()
    code = physician.main(console, as_json=as_json)
    if not as_json:
        with contextlib.suppress(UserError):  # without a checkout there is no course to continue
            say_next(console, "fix the first error above, then: labkit doctor" if code
                     else next_step.following(courses.load()))
    raise typer.Exit(code)
