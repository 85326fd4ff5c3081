"""Train data/tiny-gpt2: a GPT-2 of five million parameters that writes definitions in the manner of the Jargon File.

    apt-get download dict-jargon && dpkg-deb -x dict-jargon_*.deb .
    python scripts/train_tiny_gpt2.py prepare usr/share/dictd/jargon.dict.dz     # text -> tokenizer, tokens
    python scripts/train_tiny_gpt2.py train                                      # on a GPU: a minute; needs torch only
    python scripts/train_tiny_gpt2.py finish                                     # weights -> safetensors, samples

The text is the Jargon File 4.4.7 (public domain) as Debian's package dict-jargon carries it: a dictionary in dictd's
format, in which a headword begins at the left edge, its description is indented, and the file is compressed by
dictzip, which gzip reads. `prepare` also takes such a file uncompressed. An entry becomes one text,

    headword: /pronunciation/, n. first paragraph, unwrapped
    second paragraph

without the braces of its cross-references, and without drawings and programs. Between the steps, files lie in
build/tiny-gpt2.
"""

import gzip
import math
import re
import sys
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]
import tiny_training  # noqa: E402, found beside this script
from tiny_training import END, HELD_OUT, SEED  # noqa: E402

WORK, RESULT = ROOT / "build" / "tiny-gpt2", ROOT / "data" / "tiny-gpt2"
SHAPE = {"vocab_size": 2048, "n_positions": 256, "n_embd": 256, "n_layer": 6, "n_head": 8}


# --- prepare: text -> tokens -----------------------------------------------------------------------------------------


def entries_of(text: str) -> list[tuple[str, list[str]]]:
    """A dictionary in dictd's format -> (headword, its indented lines), without what the file says of itself."""
    entries = []
    for line in text.splitlines():
        if line and not line.startswith(" "):
            entries.append((line.strip(), []))
        elif entries:
            entries[-1][1].append(line)
    return [(head, lines) for head, lines in entries if any(line.strip() for line in lines)
            and not head.startswith("00-database")]


def is_prose(paragraph: list[str]) -> bool:
    """Not a drawing, a table or a program: mostly letters, and no wide gaps within its lines."""
    text = " ".join(line.strip() for line in paragraph)
    letters = sum(char.isalpha() or char.isspace() for char in text)
    gaps = sum("   " in line.strip() for line in paragraph)
    return letters >= 0.8 * len(text) and gaps == 0 and not text.endswith((";", "*/"))


def text_of(head: str, lines: list[str]) -> str:
    """One entry as it is trained on."""
    paragraphs, current = [], []
    for line in [*lines, ""]:
        if line.strip():
            current.append(line)
        elif current:
            paragraphs.append(current)
            current = []
    grammar, *body = paragraphs
    first = " ".join(line.strip() for line in grammar)
    if len(first) > 120:  # no line of pronunciation and word class, but text already
        first, body = "", paragraphs
    first = re.sub(r"^//[,\s]*", "", first)  # an empty pronunciation
    body = [" ".join(line.strip() for line in paragraph) for paragraph in body if is_prose(paragraph)]
    if not body:
        return ""
    text = f"{head}: {first} {body[0]}" + "".join(f"\n{paragraph}" for paragraph in body[1:])
    text = re.sub(r"\{\s*([^{}]*?)\s*\}", r"\1", text)  # cross-references
    return re.sub(r" +", " ", text)


def texts_of(path: Path) -> list[str]:
    raw = path.read_bytes()
    text = (gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw).decode("utf-8")
    return [text for text in (text_of(head, lines) for head, lines in entries_of(text)) if text]


def prepare(paths: list[Path]) -> None:
    texts: dict[str, list[str]] = {"train": [], "held_out": []}
    entries = [text for path in paths for text in texts_of(path)]
    for number, text in enumerate(entries):
        texts["held_out" if number % HELD_OUT == HELD_OUT - 1 else "train"].append(text)
    tiny_training.write_tokens(WORK, texts, entries, SHAPE["vocab_size"], (END,))


# --- train: tokens -> weights ----------------------------------------------------------------------------------------


def make_model(torch, dropout: float):
    """GPT-2 in PyTorch, parameters named as transformers names them, linear weights (in, out) as in its files."""
    nn, functional = torch.nn, torch.nn.functional
    C, heads = SHAPE["n_embd"], SHAPE["n_head"]

    class Linear(nn.Module):
        def __init__(self, inputs, outputs, scale=1.0):
            super().__init__()
            self.weight = nn.Parameter(0.02 * scale * torch.randn(inputs, outputs))
            self.bias = nn.Parameter(torch.zeros(outputs))

        def forward(self, x):
            return functional.linear(x, self.weight.t(), self.bias)

    class Attention(nn.Module):
        def __init__(self, scale):
            super().__init__()
            self.c_attn, self.c_proj = Linear(C, 3 * C), Linear(C, C, scale)

        def forward(self, x):
            batch, length, _ = x.shape
            q, k, v = (part.view(batch, length, heads, -1).transpose(1, 2) for part in self.c_attn(x).split(C, dim=2))
            mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True,
                                                            dropout_p=dropout if self.training else 0.0)
            return self.c_proj(mixed.transpose(1, 2).reshape(batch, length, C))

    class MLP(nn.Module):
        def __init__(self, scale):
            super().__init__()
            self.c_fc, self.c_proj = Linear(C, 4 * C), Linear(4 * C, C, scale)

        def forward(self, x):
            return self.c_proj(functional.gelu(self.c_fc(x), approximate="tanh"))

    class Block(nn.Module):
        def __init__(self, scale):
            super().__init__()
            self.ln_1, self.attn = nn.LayerNorm(C), Attention(scale)
            self.ln_2, self.mlp = nn.LayerNorm(C), MLP(scale)
            self.drop = nn.Dropout(dropout)

        def forward(self, x):
            x = x + self.drop(self.attn(self.ln_1(x)))
            return x + self.drop(self.mlp(self.ln_2(x)))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.wte, self.wpe = nn.Embedding(SHAPE["vocab_size"], C), nn.Embedding(SHAPE["n_positions"], C)
            nn.init.normal_(self.wte.weight, std=0.02)
            nn.init.normal_(self.wpe.weight, std=0.01)
            scale = (2 * SHAPE["n_layer"]) ** -0.5  # of what is added to the residual, so that its sum stays small
            self.h = nn.ModuleList(Block(scale) for _ in range(SHAPE["n_layer"]))
            self.ln_f, self.drop = nn.LayerNorm(C), nn.Dropout(dropout)

        def forward(self, ids):
            x = self.drop(self.wte(ids) + self.wpe(torch.arange(ids.shape[1], device=ids.device)))
            for block in self.h:
                x = block(x)
            return self.ln_f(x) @ self.wte.weight.t()

    return Model()


def train(steps: list[int], dropout: list[float], batch: int, rate: float, device: str, minutes: float) -> None:
    """One run for each number of steps and each dropout. Five million parameters soon know such a text by heart, so two
    results are kept: the weights with the least loss on entries that were not trained on, and those that know the
    others best. The first ramble; the second, which are shipped, quote, and go on from there."""
    trainer = tiny_training.Trainer(WORK, device, minutes, lambda parameter: parameter.half().cpu().numpy())
    torch, record = trainer.torch, trainer.facts(batch, rate) | {"runs": []}
    least = {"best": math.inf, "last": math.inf}
    for chance, count in ((chance, count) for chance in dropout for count in steps):
        if record["runs"] and trainer.out_of_time:
            print("no time is left for further runs")
            break
        print(f"{count} steps, dropout {chance}, on {trainer.name}")
        torch.manual_seed(SEED)
        model = make_model(torch, chance).to(trainer.device)
        log, best = trainer.run(model, count, SHAPE["n_positions"], batch, rate)
        last = trainer.weights(model)
        record["runs"].append({"steps": count, "dropout": chance, "log": log})
        lowest = min(log, key=lambda line: line["held_out"])
        for which, value, weights, line in (("best", lowest["held_out"], best, lowest),
                                            ("last", log[-1]["loss"], last, log[-1])):
            if value < least[which]:
                least[which] = value
                np.savez(WORK / f"weights-{which}.npz", **weights)
                record[which] = {"steps": count, "dropout": chance, **line}
        record["parameters"] = sum(array.size for array in last.values())
        tiny_training.write_record(WORK, record)
    for which in least:
        print(f"{which}: {record[which]}")


# --- finish: weights -> data/tiny-gpt2 -------------------------------------------------------------------------------


def finish(result: Path, keep: str) -> None:
    from safetensors.numpy import save_file

    result.mkdir(parents=True, exist_ok=True)
    with np.load(WORK / f"weights-{keep}.npz") as file:
        weights = {f"transformer.{name}": file[name] for name in file.files}
    too_large = [name for name, array in weights.items() if not np.isfinite(array).all()]
    if too_large:
        raise SystemExit(f"{too_large[0]} has numbers that float16 cannot hold")
    save_file(weights, result / "model.safetensors", metadata={"format": "pt"})
    tiny_training.write_model(WORK, result, keep, {
        "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5, "tie_word_embeddings": True, "bos_token_id": 0, "eos_token_id": 0,
        "torch_dtype": "float16", **SHAPE}, {"eos_token": END, "model_max_length": SHAPE["n_positions"]})

    from labkit.engine.sampler import Sampler, generate
    from labkit.models.load import load

    loaded = load(str(result))
    print(loaded.log)
    for prompt in ("hacker:", "segmentation fault:", "recursion:", "wizard:", ""):
        ids, began = loaded.tokenizer.encode(prompt), time.perf_counter()
        tokens = list(generate(loaded.model, ids, 100, Sampler(0.7, top_k=50), seed=1, stop=loaded.tokenizer.stop))
        rate = len(tokens) / (time.perf_counter() - began)
        print(f"\n--- {prompt!r}, {rate:.0f} tokens/s\n{prompt}{loaded.tokenizer.decode(tokens)}")


if __name__ == "__main__":
    tiny_training.main(__doc__, prepare, train, finish, RESULT, runs="+", steps=8000, dropout=0.1, batch=64, rate=1e-3,
                       minutes=3.5)
