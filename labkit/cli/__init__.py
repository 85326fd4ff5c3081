"""The `labkit` command, with one file of commands for each audience. Commands import what they need when they run, so
that `labkit --help` is quick.

Exit codes: 0 success; 1 a lesson failed, an exercise is not passed, a notebook is stale or a fault was found; 2 wrong
usage; 130 stopped by Ctrl-C.
"""

from typing import Annotated

import typer

from labkit._common.version import __version__
from labkit.cli import (
    authors,
    doctor,
    exercises,
    fits,
    grade,
    lessons,
    measure,
    models,
    quantize,
    sentences,
    serve,
    train,
)
from labkit.cli.shared import friendly, guarded

app = typer.Typer(
    help="Write GPU kernels in Python. A course and a library that run with or without an NVIDIA GPU.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def root(version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False):
    if version:
        print(f"labkit {__version__}")
        raise typer.Exit


# In the order of the help, which follows a learner's day.
COMMANDS = (
    lessons.run, lessons.site, lessons.build, lessons.learn,
    sentences.search,
    exercises.check, exercises.watch, exercises.hint, exercises.reset, exercises.progress, exercises.solution,
    grade.grade,
    doctor.doctor, fits.fits, measure.bench, train.train, models.generate, serve.serve, models.compare,
    quantize.quantize, sentences.embed, sentences.sts, sentences.weights,
)
SETTINGS = {lessons.learn: {"ignore_unknown_options": True}}  # they are JupyterLab's
for command in COMMANDS:
    app.command(context_settings=SETTINGS.get(command))(friendly(command))


# For authors of exercises.
authors_app = typer.Typer(help="For authors: are the checks of the exercises strict enough?", no_args_is_help=True)
authors_app.command()(friendly(authors.mutate))
app.add_typer(authors_app, name="exercises")


def main() -> None:
    guarded(app)
