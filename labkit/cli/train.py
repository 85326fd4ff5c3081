"""The command that trains a model."""

from pathlib import Path
from typing import Annotated

import typer

from labkit._common.errors import UserError
from labkit.cli.shared import Device, choose_device, consoles


def train(
    config: Annotated[
        str, typer.Argument(metavar="CONFIG", help="A TOML file with the model, the data and the training; "
                                                   "data/minute.toml is one.")
    ],
    out: Annotated[str, typer.Option("--out", metavar="DIR", help="The folder for the checkpoint.")],
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the run whose checkpoint is in --out, bit for bit.")
    ] = False,
    steps: Annotated[
        int | None,
        typer.Option("--steps", metavar="N", help="Stop after step N with a checkpoint; --resume continues it.", min=1),
    ] = None,
    yours: Annotated[
        bool, typer.Option("--yours", help="Use the kernels from your exercises; needs train.dtype float32.")
    ] = False,
    device: Device = None,
):
    """Train a GPT-2 or a Llama using only kernels from this course. Ctrl-C keeps the last checkpoint.

    For example: labkit train data/minute.toml --out build/minute, then labkit generate "The" --model build/minute
    """
    choose_device(device)
    from labkit.measure.plots.training import save_curve
    from labkit.train import checkpoint
    from labkit.train.settings import Settings
    from labkit.train.texts import Texts
    from labkit.train.trainer import Trainer

    folder = Path(out)
    settings = Settings.read(Path(config))
    if not resume and folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"--out {out} is there already; --resume continues its run, or name another folder")
    before = checkpoint.load(folder, settings) if resume else {}
    console, notes = consoles()
    kernels = your_kernels(settings, notes) if yours else None
    size, dtype = settings.model.vocab_size, settings.train.dtype
    if dtype != "float32" and size % 8:
        notes.print(f"model.vocab_size is {size:,}, no multiple of 8: in {dtype} the products with the embedding are "
                    f"slower; {-(-size // 8) * 8:,} leaves the last rows unused", style="dim", markup=False,
                    soft_wrap=True)
    with notes.status("Reading the texts"):
        trainer = Trainer(settings, Texts.read(settings), kernels=kernels, **before)

    def save() -> None:
        checkpoint.save(folder, trainer, save_curve)

    with notes.status("Compiling kernels") as status:
        for progress in trainer.run(steps):
            status.update(str(progress))
            if progress.held_out is not None:
                console.print(str(progress), markup=False, soft_wrap=True)
            if progress.step % settings.train.save_every == 0:
                save()
        save()
    console.print(f"Step {trainer.step:,} of {settings.train.steps:,}: the checkpoint is in {out}, with loss.svg. "
                  f"Next: labkit generate \"The\" --model {out}", markup=False, soft_wrap=True)


def your_kernels(settings, notes):
    """Return the launchers of both passes with those of the finished exercises, and say which these are."""
    from labkit.cli.models import checked_answers
    from labkit.course.yours import places
    from labkit.models.configs import GPT2Config

    if settings.train.dtype != "float32":
        raise UserError(f"--yours needs train.dtype float32, not {settings.train.dtype}")
    model = places.GPT2 if isinstance(settings.model, GPT2Config) else places.LLAMA
    return checked_answers(places.in_training_of(model), notes).training_kernels()
