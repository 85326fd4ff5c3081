"""The commands for authors of exercises: mutate."""

from typing import Annotated

import typer

from labkit._common import paths
from labkit.cli.exercises import Which, find_exercises
from labkit.cli.shared import consoles, fail, progress_bar


def mutate(
    which: Which = None,
    count: Annotated[int, typer.Option("--count", min=1, help="Mutants of each answer.")] = 30,
    all_: Annotated[bool, typer.Option("--all", help="Every mutant there is, thousands of them.")] = False,
    workers: Annotated[int | None, typer.Option("--workers", min=1, help="Processes. As many as cores.")] = None,
):
    """Change each answer in many small ways: check must reject every mutant.

    A survivor is a hole in the check, or equivalent to the answer: data/mutants.toml lists them, with the reason where
    one was found to be equivalent. Leaves with code 1 if one survives that is not listed there.
    """
    from rich.markup import escape

    from labkit.course import registry as courses
    from labkit.course.mutants import ledger, trial

    console, _ = consoles()
    course = courses.load()
    chapters, entry = find_exercises(course, which)
    names = [entry.name] if entry else [exercise.name for chapter in chapters
                                        for exercise in course.exercises_of(chapter)]
    path = course.root / "data" / ledger.NAME
    known = ledger.survivors(path)
    mutants = {name: trial.mutants_of(trial.exercises.find(name), None if all_ else count) for name in names}
    outcomes: dict[str, list] = {name: [] for name in names}
    tested = survived = new = 0
    try:
        with progress_bar(console) as bar:
            task = bar.add_task("Mutants", total=sum(map(len, mutants.values())))
            for outcome in trial.try_all(mutants, workers):
                results = outcomes[outcome.exercise]
                results.append(outcome)
                tested += 1
                bar.update(task, advance=1, description=f"Mutants, {outcome.exercise}")
                if outcome.survived:
                    survived += 1
                    reason = known.get((outcome.exercise, outcome.mutant))
                    new += reason is None
                    say = f"equivalent: {reason}" if reason else "known" if reason == "" else "[bold red]new[/]"
                    console.print(f"survived  {outcome.exercise}  {escape(outcome.mutant)}  ({say})", soft_wrap=True)
                if len(results) == len(mutants[outcome.exercise]) and not all_:
                    ledger.update(path, results)
    except KeyboardInterrupt:
        fail(f"Stopped. The exercises that were finished are in {paths.shown(path)}.", code=130)
    console.print(f"{tested} mutants of {len(names)} answers: {tested - survived} rejected, {survived} survived, "
                  f"{new} of them not known.", soft_wrap=True)
    if new:
        raise typer.Exit(1)
