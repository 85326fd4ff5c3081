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

without the braces of its cross-references, and without drawings and programs. The three steps are apart because a
machine with a GPU may have no tokenizers and no network; between them, files lie in build/tiny-gpt2.
"""

import argparse
import gzip
import json
import math
import re
import sys
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
WORK, RESULT = ROOT / "build" / "tiny-gpt2", ROOT / "data" / "tiny-gpt2"
END = "<|endoftext|>"  # token 0: stands before and after every text
SHAPE = {"vocab_size": 2048, "n_positions": 256, "n_embd": 256, "n_layer": 6, "n_head": 8}
HELD_OUT = 20  # every so many-th entry is not trained on
SEED = 0


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
    import tokenizers

    texts = [text for path in paths for text in texts_of(path)]
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.train_from_iterator(texts, tokenizers.trainers.BpeTrainer(
        vocab_size=SHAPE["vocab_size"], special_tokens=[END], show_progress=False,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet()))
    # A text begins with END, here and in training: so the model knows that a headword comes first.
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single=f"{END} $A", special_tokens=[(END, tokenizer.token_to_id(END))])
    assert tokenizer.token_to_id(END) == 0 and tokenizer.get_vocab_size() == SHAPE["vocab_size"]
    encoded = [tokenizer.encode(text).ids for text in texts]  # each begins with END
    held_out = [ids for n, ids in enumerate(encoded) if n % HELD_OUT == HELD_OUT - 1]
    trained = [ids for n, ids in enumerate(encoded) if n % HELD_OUT != HELD_OUT - 1]
    WORK.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(WORK / "tokenizer.json"))
    np.savez_compressed(WORK / "tokens.npz", **{
        name: np.array([token for ids in part for token in ids] + [0], np.uint16)
        for name, part in (("train", trained), ("held_out", held_out))})
    (WORK / "text.txt").write_text("\n\n".join(texts), encoding="utf-8")  # to look at
    tokens, characters = sum(map(len, encoded)), sum(map(len, texts))
    print(f"{len(texts):,} entries, {characters:,} characters, {tokens:,} tokens of {SHAPE['vocab_size']:,}; "
          f"{characters / tokens:.2f} characters a token; {sum(map(len, held_out)):,} tokens held out -> {WORK}")


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


def train(steps: list[int], dropouts: list[float], batch: int, rate: float, device: str, minutes: float) -> None:
    """One run for each number of steps and each dropout. Five million parameters soon know such a text by heart, so two
    results are kept: the weights with the least loss on entries that were not trained on, and those that know the
    others best. The first ramble; the second, which are shipped, quote, and go on from there."""
    import torch

    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    with np.load(WORK / "tokens.npz") as file:
        tokens = {name: torch.tensor(file[name].astype(np.int64), device=device) for name in file.files}
    name = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    record = {"device": name, "torch": torch.__version__, "batch": batch, "rate": rate, "seed": SEED,
            "train_tokens": len(tokens["train"]), "held_out_tokens": len(tokens["held_out"]), "runs": []}
    until = time.perf_counter() + 60 * minutes
    least = {"best": math.inf, "last": math.inf}
    for dropout in dropouts:
        for count in steps:
            if record["runs"] and time.perf_counter() > until:
                print("no time is left for further runs")
                break
            print(f"{count} steps, dropout {dropout}, on {name}")
            log, best, last = one_run(torch, tokens, count, batch, rate, dropout, device, until)
            record["runs"].append({"steps": count, "dropout": dropout, "log": log})
            lowest = min(log, key=lambda line: line["held_out"])
            for which, value, weights, line in (("best", lowest["held_out"], best, lowest),
                                                ("last", log[-1]["loss"], last, log[-1])):
                if value < least[which]:
                    least[which] = value
                    np.savez(WORK / f"weights-{which}.npz", **weights)
                    record[which] = {"steps": count, "dropout": dropout, **line}
            record["parameters"] = sum(array.size for array in last.values())
            (WORK / "training.json").write_text(json.dumps(record, indent=1) + "\n")
    for which in least:
        print(f"{which}: {record[which]}")


def one_run(torch, tokens: dict, steps: int, batch: int, rate: float, dropout: float, device: str, until: float):
    """Its log, the weights with the least held-out loss, and the last ones; all as float16."""
    torch.manual_seed(SEED)
    length = SHAPE["n_positions"]
    model = make_model(torch, dropout).to(device)
    wide = [parameter for parameter in model.parameters() if parameter.ndim == 2]
    narrow = [parameter for parameter in model.parameters() if parameter.ndim < 2]
    optimizer = torch.optim.AdamW([{"params": wide, "weight_decay": 0.1}, {"params": narrow, "weight_decay": 0.0}],
                                  lr=rate, betas=(0.9, 0.98), fused=device == "cuda")
    cast = torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda")
    generator = torch.Generator().manual_seed(SEED)
    last = len(tokens["train"]) - length - 1
    begins = (tokens["train"][:-1] == 0).nonzero()[:, 0].cpu()  # where an entry begins
    begins = begins[begins <= last]
    offsets = torch.arange(length + 1, device=device)

    def windows():
        """Half of them begin with an entry, as generation does; the others anywhere, so that all of it is read."""
        anywhere = torch.randint(last + 1, (batch - batch // 2,), generator=generator)
        entries = begins[torch.randint(len(begins), (batch // 2,), generator=generator)]
        at = torch.cat([anywhere, entries]).to(device)
        return tokens["train"][at[:, None] + offsets]

    def loss_of(rows):
        logits = model(rows[:, :-1])
        return torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), rows[:, 1:].flatten())

    @torch.no_grad()
    def held_out_loss():
        model.eval()
        rows = tokens["held_out"].unfold(0, length + 1, length)
        with cast:
            losses = [(loss_of(part).item(), len(part)) for part in rows.split(64)]
        model.train()
        return sum(loss * count for loss, count in losses) / sum(count for _, count in losses)

    def weights():
        return {name: parameter.detach().half().cpu().numpy() for name, parameter in model.named_parameters()}

    began, least, best, log = time.perf_counter(), math.inf, None, []
    warm_up, every = max(1, min(100, steps // 10)), max(1, steps // 20)
    for step in range(1, steps + 1):
        share = (step - warm_up) / max(1, steps - warm_up)
        now = rate * (step / warm_up if step <= warm_up else 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * share)))
        for group in optimizer.param_groups:
            group["lr"] = now
        with cast:
            loss = loss_of(windows())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        out_of_time = time.perf_counter() > until
        if step % every == 0 or step == steps or out_of_time:
            held_out = held_out_loss()
            log.append({"step": step, "loss": round(loss.item(), 4), "held_out": round(held_out, 4),
                        "seconds": round(time.perf_counter() - began, 1)})
            print(f"step {step:5}  loss {loss.item():.3f}  held out {held_out:.3f}  rate {now:.1e}  "
                  f"{log[-1]['seconds']:.0f} s", flush=True)
            if held_out < least:
                least, best = held_out, weights()
        if out_of_time:
            print("stopped: the time is up")
            break
    return log, best, weights()


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
    (result / "config.json").write_text(json.dumps({
        "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5, "tie_word_embeddings": True, "bos_token_id": 0, "eos_token_id": 0,
        "torch_dtype": "float16", **SHAPE}, indent=2) + "\n")
    (result / "tokenizer.json").write_bytes((WORK / "tokenizer.json").read_bytes())
    (result / "tokenizer_config.json").write_text(json.dumps({
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": END, "eos_token": END,
        "model_max_length": SHAPE["n_positions"], "clean_up_tokenization_spaces": False}, indent=2) + "\n")
    record = json.loads((WORK / "training.json").read_text())
    (result / "training.json").write_text(json.dumps({"kept": keep, **record}, indent=1) + "\n")
    size = sum(file.stat().st_size for file in result.iterdir())
    print(f"{result}: {size:,} bytes")
    if size >= 12_000_000:
        raise SystemExit("more than 12 MB")

    sys.path.insert(0, str(ROOT))
    from labkit.engine.sampler import Sampler, generate
    from labkit.models.load import load

    loaded = load(str(result))
    print(loaded.log)
    for prompt in ("hacker:", "segmentation fault:", "recursion:", "wizard:", ""):
        ids = loaded.tokenizer.encode(prompt)
        began, tokens = time.perf_counter(), []
        for token in generate(loaded.model, ids, 100, Sampler(0.7, top_k=50), seed=1, stop=loaded.tokenizer.stop):
            tokens.append(token)
        rate = len(tokens) / (time.perf_counter() - began)
        print(f"\n--- {prompt!r}, {rate:.0f} tokens/s\n{prompt}{loaded.tokenizer.decode(tokens)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("prepare", help="text -> tokenizer and tokens")
    command.add_argument("texts", nargs="+", type=Path, help="dictionaries in dictd's format, .dict or .dict.dz")
    command = commands.add_parser("train", help="tokens -> weights; needs torch")
    command.add_argument("--steps", type=int, nargs="+", default=[8000], help="a run for each")
    command.add_argument("--dropout", type=float, nargs="+", default=[0.1], dest="dropouts", help="and for each")
    command.add_argument("--batch", type=int, default=64)
    command.add_argument("--rate", type=float, default=1e-3)
    command.add_argument("--device", default="", help="cuda or cpu; cuda if there is one")
    command.add_argument("--minutes", type=float, default=3.5, help="stop after so many, wherever it is")
    command = commands.add_parser("finish", help="weights -> data/tiny-gpt2, and samples")
    command.add_argument("--out", type=Path, default=RESULT)
    command.add_argument("--keep", choices=("best", "last"), default="last",
                         help="the weights with the least held-out loss, or those that know the text best")
    arguments = vars(parser.parse_args())
    command = arguments.pop("command")
    if command == "prepare":
        prepare(arguments["texts"])
    elif command == "train":
        train(**arguments)
    else:
        finish(arguments["out"], arguments["keep"])


if __name__ == "__main__":
    main()
