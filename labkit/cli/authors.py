"""The commands for authors of exercises: mutate."""

from typing import Annotated

import typer

from labkit._common import paths
from labkit.cli.exercises import Which, find_exercises
from labkit.cli.shared import consoles, fail, progress_bar


def mutate(
    which: Which = None,
    count: Annotated[int, typer.Option("--count", min=1, help="Mutants per answer.")] = 30,
    all_: Annotated[bool, typer.Option("--all", help="Try every mutant; there are thousands.")] = False,
    workers: Annotated[int | None, typer.Option("--workers", min=1, help="Processes; by default one per core.")] = None,
):
    """Make many small changes to each answer: check must reject every mutant.

    A mutant that survives is either a hole in the check, listed in data/mutants.toml, or equivalent to the answer, in
    which case EQUIVALENT in the exercise's file says why. Exits with code 1 if a survivor is in neither.
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
    holes = ledger.read(path)["holes"]
    equivalent = {name: trial.exercises.equivalent(name) for name in names}
    mutants = {name: trial.mutants_of(trial.exercises.find(name), None if all_ else count) for name in names}
    outcomes: dict[str, list] = {name: [] for name in names}
    tested = survived = new = 0
    try:
        with progress_bar(console) as bar:
            task = bar.add_task("Mutants", total=sum(map(len, mutants.values())))
            for outcome in trial.try_all(mutants, workers):
                name = outcome.exercise
                results = outcomes[name]
                results.append(outcome)
                tested += 1
                bar.update(task, advance=1, description=f"Mutants, {name}")
                if outcome.survived:
                    survived += 1
                    reason = equivalent[name].get(outcome.mutant)
                    known = outcome.mutant in holes.get(name, [])
                    new += not reason and not known
                    say = f"equivalent: {reason}" if reason else "known" if known else "[bold red]new[/]"
                    console.print(f"survived  {name}  {escape(outcome.mutant)}  ({say})", soft_wrap=True)
                if len(results) == len(mutants[name]) and not all_:
                    for mutant in ledger.update(path, name, results, equivalent[name]):
                        console.print(f"rejected  {name}  {escape(mutant)}  (EQUIVALENT names it)", soft_wrap=True)
    except KeyboardInterrupt:
        fail(f"Stopped. The finished exercises are in {paths.shown(path)}.", code=130)
    console.print(f"{tested} mutants of {len(names)} answers: {tested - survived} rejected, {survived} survived, "
                  f"{new} of them not known.", soft_wrap=True)
    if new:
        raise typer.Exit(1)
