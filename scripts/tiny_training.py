"""What train_tiny_gpt2.py and train_tiny_llama.py share: tokens from texts, the training loop, the files of a model.

Between the three steps (prepare, train, finish) files lie in a folder, `work`. The steps are apart because a machine
with a GPU may have no tokenizers and no network.
"""

import argparse
import json
import math
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
END = "<|endoftext|>"  # token 0: stands before and after every text
HELD_OUT = 20  # every so many-th entry is not trained on
SEED = 0
LARGEST = 12_000_000  # bytes of the result


def write_tokens(work: Path, texts: dict[str, list[str]], learn_from: list[str], vocab_size: int,
                 special: tuple[str, ...]) -> None:
    """texts: "train" and "held_out" -> texts. learn_from: those that the tokenizer is trained on. special: its first
    tokens, END before all."""
    import tokenizers

    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.train_from_iterator(learn_from, tokenizers.trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=list(special), show_progress=False,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet()))
    # A text begins with END, here and in training: so the model knows that a headword comes first.
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(single=f"{END} $A", special_tokens=[(END, 0)])
    assert [tokenizer.token_to_id(token) for token in special] == [*range(len(special))]
    assert tokenizer.get_vocab_size() == vocab_size
    encoded = {part: [tokenizer.encode(text).ids for text in several] for part, several in texts.items()}
    work.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(work / "tokenizer.json"))
    np.savez_compressed(work / "tokens.npz", **{
        part: np.array([token for ids in several for token in ids] + [0], np.uint16)
        for part, several in encoded.items()})
    (work / "text.txt").write_text("\n\n".join(texts["train"]), encoding="utf-8")  # to look at
    tokens, characters = sum(map(len, encoded["train"])), sum(map(len, texts["train"]))
    print(f"{len(texts['train']):,} texts, {characters:,} characters, {tokens:,} tokens of {vocab_size:,}; "
          f"{characters / tokens:.2f} characters a token; {sum(map(len, encoded['held_out'])):,} tokens held out -> "
          f"{work}")


class Trainer:
    """The tokens on a device. stored: what a parameter becomes in the files, as a NumPy array."""

    def __init__(self, work: Path, device: str, minutes: float, stored: Callable):
        import torch

        self.torch, self.stored = torch, stored
        self.device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        self.name = torch.cuda.get_device_name() if self.device == "cuda" else "CPU"
        with np.load(work / "tokens.npz") as file:
            self.tokens = {part: torch.tensor(file[part].astype(np.int64), device=self.device) for part in file.files}
        self.until = time.perf_counter() + 60 * minutes

    @property
    def out_of_time(self) -> bool:
        return time.perf_counter() > self.until

    def facts(self, batch: int, rate: float) -> dict:
        """What training.json begins with."""
        return {"device": self.name, "torch": self.torch.__version__, "batch": batch, "rate": rate, "seed": SEED,
                "train_tokens": len(self.tokens["train"]), "held_out_tokens": len(self.tokens["held_out"])}

    def weights(self, model) -> dict[str, np.ndarray]:
        return {name: self.stored(parameter.detach()) for name, parameter in model.named_parameters()}

    def loss(self, run, rows):
        logits = run(rows[:, :-1])
        return self.torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), rows[:, 1:].flatten())

    @property
    def cast(self):
        return self.torch.autocast(self.device, dtype=self.torch.bfloat16, enabled=self.device == "cuda")

    def held_out_loss(self, model, length: int, batch: int) -> float:
        model.eval()
        rows = self.tokens["held_out"].unfold(0, length + 1, length)
        with self.torch.no_grad(), self.cast:
            losses = [(self.loss(model, part).item(), len(part)) for part in rows.split(batch)]
        model.train()
        return sum(loss * count for loss, count in losses) / sum(count for _, count in losses)

    def run(self, model, steps: int, length: int, batch: int, rate: float, forward=None) -> tuple[list[dict], dict]:
        """Train it. Return the log, and the weights with the least held-out loss. forward: the model as it is called
        for training, such as a compiled one."""
        torch, train = self.torch, self.tokens["train"]
        wide = [parameter for parameter in model.parameters() if parameter.ndim == 2]
        narrow = [parameter for parameter in model.parameters() if parameter.ndim < 2]
        optimizer = torch.optim.AdamW([{"params": wide, "weight_decay": 0.1}, {"params": narrow, "weight_decay": 0.0}],
                                      lr=rate, betas=(0.9, 0.98), fused=self.device == "cuda")
        generator = torch.Generator().manual_seed(SEED)
        last = len(train) - length - 1
        begins = (train[:-1] == 0).nonzero()[:, 0].cpu()  # where a text begins
        begins = begins[begins <= last]
        offsets = torch.arange(length + 1, device=self.device)

        def windows():
            """Half of them begin with a text, as generation does; the others anywhere, so that all of it is read."""
            anywhere = torch.randint(last + 1, (batch - batch // 2,), generator=generator)
            texts = begins[torch.randint(len(begins), (batch // 2,), generator=generator)]
            return train[torch.cat([anywhere, texts]).to(self.device)[:, None] + offsets]

        began, least, best, log = time.perf_counter(), math.inf, {}, []
        warm_up, every = max(1, min(100, steps // 10)), max(1, steps // 20)
        for step in range(1, steps + 1):
            share = (step - warm_up) / max(1, steps - warm_up)
            now = rate * (step / warm_up if step <= warm_up else 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * share)))
            for group in optimizer.param_groups:
                group["lr"] = now
            with self.cast:
                loss = self.loss(forward or model, windows())
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            stopped = self.out_of_time
            if step % every == 0 or step == steps or stopped:
                held_out = self.held_out_loss(model, length, batch)
                log.append({"step": step, "loss": round(loss.item(), 4), "held_out": round(held_out, 4),
                            "seconds": round(time.perf_counter() - began, 1)})
                print(f"step {step:5}  loss {loss.item():.3f}  held out {held_out:.3f}  rate {now:.1e}  "
                      f"{log[-1]['seconds']:.0f} s", flush=True)
                if held_out < least:
                    least, best = held_out, self.weights(model)
            if stopped:
                print("stopped: the time is up")
                break
        return log, best


def write_record(work: Path, record: dict) -> None:
    (work / "training.json").write_text(json.dumps(record, indent=1) + "\n")


def write_model(work: Path, result: Path, keep: str, config: dict, tokenizer_config: dict) -> None:
    """What a model's folder has beside its weights, which are there already."""
    (result / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    (result / "tokenizer.json").write_bytes((work / "tokenizer.json").read_bytes())
    (result / "tokenizer_config.json").write_text(json.dumps({
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": END, "clean_up_tokenization_spaces": False,
        **tokenizer_config}, indent=2) + "\n")
    record = json.loads((work / "training.json").read_text())
    (result / "training.json").write_text(json.dumps({"kept": keep, **record}, indent=1) + "\n")
    size = sum(file.stat().st_size for file in result.iterdir())
    print(f"{result}: {size:,} bytes")
    if size >= LARGEST:
        raise SystemExit(f"more than {LARGEST / 1e6:.0f} MB")


def main(about: str, prepare: Callable, train: Callable, finish: Callable, result: Path, *, runs: str | None = None,
         **defaults) -> None:
    """The command line of a script. runs: "+" where it takes several numbers of steps and dropouts, a run for each.
    defaults: of train's options."""
    parser = argparse.ArgumentParser(description=about.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("prepare", help="text -> tokenizer and tokens")
    command.add_argument("paths", nargs="+", type=Path, help="dictionaries in dictd's format, .dict or .dict.dz")
    command = commands.add_parser("train", help="tokens -> weights; needs torch")
    for name in ("steps", "dropout"):
        command.add_argument(f"--{name}", type=type(defaults[name]), nargs=runs,
                             default=[defaults[name]] if runs else defaults[name])
    command.add_argument("--batch", type=int, default=defaults["batch"])
    command.add_argument("--rate", type=float, default=defaults["rate"])
    command.add_argument("--device", default="", help="cuda or cpu; cuda if there is one")
    command.add_argument("--minutes", type=float, default=defaults["minutes"],
                         help="stop after so many, wherever it is")
    command = commands.add_parser("finish", help="weights -> the model's folder, and samples")
    command.add_argument("--out", dest="result", type=Path, default=result)
    command.add_argument("--keep", choices=("best", "last"), default="last",
                         help="the weights with the least held-out loss, or those that know the text best")
    arguments = vars(parser.parse_args())
    {"prepare": prepare, "train": train, "finish": finish}[arguments.pop("command")](**arguments)
