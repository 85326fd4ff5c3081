"""The command that writes a model with its linear layers in 8 or 4 bits."""

import time
from pathlib import Path
from typing import Annotated

import typer

from labkit._common.errors import UserError
from labkit._common.files import read_text
from labkit.cli.shared import consoles, progress_bar

FORMATS = {"int4": 4, "int8": 8, "fp8": 8}  # and their bits
METHODS = ("gptq", "rtn")
MAX_TOKENS = 2048  # of a calibration text; the rest is cut off


def quantize(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="tiny-llama; a folder; or the name of a Llama or Qwen3 on the "
                                                  "Hugging Face hub.")
    ],
    out: Annotated[str, typer.Option("--out", "-o", metavar="DIR", help="The folder to write; it must not exist.")],
    bits: Annotated[int | None, typer.Option("--bits", help="4 or 8; by default 4, or those of --format.")] = None,
    format: Annotated[
        str | None,
        typer.Option("--format", help="int4, int8 or fp8 (E4M3); by default int4, and int8 with --bits 8."),
    ] = None,
    group: Annotated[
        int | None,
        typer.Option("--group", help="int4: how many weights share a scale: 128, 64 or 32. By default the largest that "
                                     "divides the number of inputs of every layer."),
    ] = None,
    zeros: Annotated[
        bool, typer.Option("--zeros", help="int4: also store a zero point per group, so that codes span its smallest "
                                           "to its largest weight.")
    ] = False,
    method: Annotated[
        str | None,
        typer.Option("--method", help="gptq, which needs --calibration, or rtn: round to nearest. By default gptq "
                                      "if --calibration is given, else rtn."),
    ] = None,
    calibration: Annotated[
        str | None,
        typer.Option("--calibration", metavar="FILE", help="gptq: a UTF-8 text file, one text per line, typical of "
                                                           "what the model is for. About 40 texts are enough."),
    ] = None,
):
    """Write a Llama or a Qwen3 with its linear layers in 8 or 4 bits, in the layout of compressed-tensors.

    generate and serve take the folder as --model. The embedding, the head and the norms stay as they are. Ctrl-C leaves
    nothing behind.

    For example: labkit quantize tiny-llama --out tiny-llama-int4 && labkit generate "What is a hacker?" --model
    tiny-llama-int4
    """
    format, method = chosen_format(bits, format), chosen_method(method, calibration)
    target = Path(out)
    if target.exists():
        raise UserError(f"--out {out} exists already; give a folder that does not")
    texts = None if method == "rtn" else lines_of(calibration)

    from labkit.models.configs import LlamaConfig, names_in
    from labkit.models.load import ARCHITECTURES, NEEDED, folder, model_type, reading, tensors
    from labkit.models.quantized_folder import write_folder
    from labkit.models.tokenizer import CONFIG, Tokenizer

    console, notes = consoles()
    path = folder(model)
    with reading(path, NEEDED):
        shape, architecture = ARCHITECTURES[model_type(path)]
        if not issubclass(shape, LlamaConfig):
            raise UserError(f"MODEL is a {architecture.__name__}; only a Llama or a Qwen3 can be quantised")
        config = shape.read(path / CONFIG)
        if config.quantization_config is not None:
            raise UserError(f"MODEL {model} is quantised already")
        names_in(tensors(path), config)  # raises an error for a file that does not fit, before the work
        tokenizer = Tokenizer.of(path)
    scheme = scheme_for(config, format, group, zeros)
    ids = None
    if texts is not None:
        longest = min(MAX_TOKENS, config.max_position_embeddings)
        ids = [config.checked_ids(tokenizer.encode(text)[:longest], "--calibration") for text in texts]
    began = time.perf_counter()
    try:
        with progress_bar(notes, "layers") as bar:
            task = bar.add_task("Quantising", total=None)
            write_folder(path, target, config, scheme, ids,
                         lambda done, total: bar.update(task, completed=done, total=total))
    except OSError as error:
        raise UserError(f"--out {out} cannot be written: {error.strerror or error}") from None
    except ValueError as error:
        raise UserError(f"{model}: {error}") from None
    before, after = (sum(file.stat().st_size for file in one.glob("*.safetensors")) for one in (path, target))
    groups = f" in groups of {scheme.group}" if scheme.group else ""
    console.print(f"Wrote {model} in {format}{groups} to {out}, by {method}, in {time.perf_counter() - began:.1f} s: "
                  f"{before / 1e6:.1f} MB became {after / 1e6:.1f} MB", markup=False, soft_wrap=True)


def chosen_format(bits: int | None, format: str | None) -> str:
    if bits not in (None, 4, 8):
        raise UserError(f"--bits {bits} is not possible; allowed are 4 and 8")
    if format is None:
        return "int8" if bits == 8 else "int4"
    if format not in FORMATS:
        raise UserError(f"--format {format} is not known; allowed are {', '.join(FORMATS)}")
    if bits not in (None, FORMATS[format]):
        raise UserError(f"--format {format} has {FORMATS[format]} bits; leave out --bits {bits}")
    return format


def scheme_for(config, format: str, group: int | None, zeros: bool):
    from labkit.models.quantize import Scheme, fitting_groups

    if format != "int4":
        if group is not None or zeros:
            raise UserError(f"{'--zeros' if zeros else '--group'} is for int4; {format} has a scale for each row")
        return Scheme("e4m3" if format == "fp8" else format)
    try:
        fitting = fitting_groups(config)
    except ValueError as error:
        raise UserError(f"--format int4 is not possible: {error}") from None
    if group is not None and group not in fitting:
        raise UserError(f"--group {group} is not possible; for the layers of this model, allowed are "
                        f"{', '.join(map(str, fitting))}")
    return Scheme(format, group or fitting[0], zeros)


def chosen_method(method: str | None, calibration: str | None) -> str:
    if method is None:
        return "rtn" if calibration is None else "gptq"
    if method not in METHODS:
        raise UserError(f"--method {method} is not known; allowed are {', '.join(METHODS)}")
    if (method == "gptq") != (calibration is not None):
        raise UserError("--method gptq needs --calibration FILE" if calibration is None else
                        "--calibration is for --method gptq; rtn needs no texts")
    return method


def lines_of(path: str) -> list[str]:
    try:
        lines = [line.strip() for line in read_text(Path(path)).splitlines() if line.strip()]
    except FileNotFoundError:
        raise UserError(f"--calibration {path} does not exist") from None
    if not lines:
        raise UserError(f"--calibration {path} has no text")
    return lines
