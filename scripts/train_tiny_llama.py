"""Train data/tiny-llama: a Llama of five million parameters that answers questions with the Jargon File's definitions.

    apt-get download dict-jargon && dpkg-deb -x dict-jargon_*.deb .
    python scripts/train_tiny_llama.py prepare usr/share/dictd/jargon.dict.dz    # text -> tokenizer, tokens
    python scripts/train_tiny_llama.py train                                     # on a GPU: minutes; needs torch only
    python scripts/train_tiny_llama.py finish                                    # weights -> safetensors, samples

The text is that of scripts/train_tiny_gpt2.py, which reads it. An entry is trained on as it is, and as a few short
conversations: a question about the headword, and the first paragraph of the description without its grammar,

    <|user|>What is a hacker?<|end|><|assistant|>A person who enjoys exploring the details of ...<|end|>

The result is what transformers loads as a LlamaForCausalLM: grouped-query attention 2:1, a tied head, bfloat16. The
three steps are apart because a machine with a GPU may have no tokenizers and no network; between them, files lie in
build/tiny-llama.
"""

import argparse
import json
import math
import random
import re
import sys
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]
from train_tiny_gpt2 import END, HELD_OUT, SEED, texts_of  # noqa: E402

WORK, RESULT = ROOT / "build" / "tiny-llama", ROOT / "data" / "tiny-llama"
SPECIAL = (END, "<|user|>", "<|assistant|>", "<|end|>")  # tokens 0 to 3; END stands before every text
SHAPE = {"vocab_size": 4096, "hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 6,
         "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 32, "max_position_embeddings": 1024}
EPSILON, THETA = 1e-5, 10_000.0
TEMPLATE = (
    # Many clients always send a system message. The model has never read one, so it is left out.
    "{{ bos_token }}{% for message in messages if message.role != 'system' %}"
    "{{ '<|' + message.role + '|>' + message.content + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}")
ALWAYS = ("hacker",)  # never held out: the first question that everyone asks
QUESTIONS = 3  # for each entry
LARGEST = 12_000_000  # bytes of the result


# --- prepare: text -> tokens -----------------------------------------------------------------------------------------

CLASS = r"(?:n|v|vt|vi|adj|adv|interj|pref|suff|prep|conj|pron|quant|abbrev|obs|pl|excl|imp|poss)\."
# What may stand before a description: a pronunciation, a word class, where it is from, the number of the first sense.
GRAMMAR = re.compile(rf"\s*(?:/[^/\n]{{1,60}}/(?:\s*,)?|(?:or|also)\s+(?=/)|{CLASS}(?:[,;]|/(?=\s*[a-z]+\.)|\s|$)+|"
                     r"\[[^\]]*\]|\(alt\.[^)]*\)|\d\.\s)\s*")


def definition_of(text: str) -> tuple[str, str, str]:
    """(headword, grammar, the first paragraph of its description that says something) of an entry's text."""
    head, _, rest = text.partition(": ")
    start = 0
    while match := GRAMMAR.match(rest, start):
        start = match.end()
    return head, rest[:start], rest[start:].split("\n")[0].strip()


def questions_of(head: str, grammar: str, rng: random.Random) -> list[str]:
    article = "an" if head[:1].lower() in "aeiou" else "a"
    always = [f"What is {article} {head}?"] if re.search(r"(?<!\w)n\.", grammar) else [f"What is {head}?"]
    others = [f"What does {head} mean?", f"Define {head}.", f"Tell me about {head}.", f"What is the meaning of {head}?",
              f"Explain {head}."]
    if re.search(r"(?<!\w)v[ti]?\.", grammar):
        others.append(f"What does it mean to {head}?")
    return always + rng.sample(others, QUESTIONS - 1)


def conversation(question: str, answer: str) -> str:
    """As TEMPLATE writes it, without END, which the tokenizer sets before every text."""
    return f"<|user|>{question}<|end|><|assistant|>{answer}<|end|>"


def prepare(paths: list[Path]) -> None:
    import tokenizers

    entries = [text for path in paths for text in texts_of(path)]
    rng = random.Random(SEED)
    texts: dict[str, list[str]] = {"train": [], "held_out": []}
    for number, text in enumerate(entries):
        head, grammar, answer = definition_of(text)
        part = "held_out" if number % HELD_OUT == HELD_OUT - 1 and head not in ALWAYS else "train"
        texts[part].append(text)
        if answer:
            texts[part] += [conversation(question, answer) for question in questions_of(head, grammar, rng)]
    rng.shuffle(texts["train"])

    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.train_from_iterator(entries, tokenizers.trainers.BpeTrainer(
        vocab_size=SHAPE["vocab_size"], special_tokens=list(SPECIAL), show_progress=False,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(single=f"{END} $A", special_tokens=[(END, 0)])
    assert [tokenizer.token_to_id(token) for token in SPECIAL] == [0, 1, 2, 3]
    assert tokenizer.get_vocab_size() == SHAPE["vocab_size"]
    encoded = {part: [tokenizer.encode(text).ids for text in several] for part, several in texts.items()}
    WORK.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(WORK / "tokenizer.json"))
    np.savez_compressed(WORK / "tokens.npz", **{
        part: np.array([token for ids in several for token in ids] + [0], np.uint16)
        for part, several in encoded.items()})
    (WORK / "text.txt").write_text("\n\n".join(texts["train"]), encoding="utf-8")  # to look at
    print(f"{len(entries):,} entries, {len(texts['train']):,} texts of {sum(map(len, encoded['train'])):,} tokens; "
          f"{sum(map(len, encoded['held_out'])):,} tokens held out -> {WORK}")


# --- train: tokens -> weights ----------------------------------------------------------------------------------------


def make_model(torch, dropout: float):
    """A LlamaForCausalLM in PyTorch, parameters named as transformers names them."""
    nn, functional = torch.nn, torch.nn.functional
    C, size = SHAPE["hidden_size"], SHAPE["head_dim"]
    heads, shared = SHAPE["num_attention_heads"], SHAPE["num_key_value_heads"]
    small = (2 * SHAPE["num_hidden_layers"]) ** -0.5  # of what is added to the residual, so that its sum stays small
    frequencies = THETA ** (-torch.arange(0, size, 2) / size)
    angles = torch.arange(SHAPE["max_position_embeddings"])[:, None] * frequencies

    def linear(inputs, outputs, scale=1.0):
        layer = nn.Linear(inputs, outputs, bias=False)
        nn.init.normal_(layer.weight, std=0.02 * scale)
        return layer

    def rotate(x):  # (batch, heads, length, size)
        cos, sin = (part[: x.shape[2]].to(x.device, x.dtype) for part in (angles.cos(), angles.sin()))
        first, second = x.chunk(2, dim=-1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.q_proj = linear(C, heads * size)
            self.k_proj, self.v_proj = linear(C, shared * size), linear(C, shared * size)
            self.o_proj = linear(heads * size, C, small)

        def forward(self, x):
            batch, length, _ = x.shape
            q, k, v = (layer(x).view(batch, length, -1, size).transpose(1, 2)
                       for layer in (self.q_proj, self.k_proj, self.v_proj))
            k, v = (part.repeat_interleave(heads // shared, dim=1) for part in (rotate(k), v))
            attended = functional.scaled_dot_product_attention(rotate(q), k, v, is_causal=True)
            return self.o_proj(attended.transpose(1, 2).reshape(batch, length, -1))

    class MLP(nn.Module):
        def __init__(self):
            super().__init__()
            inner = SHAPE["intermediate_size"]
            self.gate_proj, self.up_proj, self.down_proj = linear(C, inner), linear(C, inner), linear(inner, C, small)

        def forward(self, x):
            return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.input_layernorm, self.self_attn = nn.RMSNorm(C, EPSILON), Attention()
            self.post_attention_layernorm, self.mlp = nn.RMSNorm(C, EPSILON), MLP()
            self.drop = nn.Dropout(dropout)

        def forward(self, x):
            x = x + self.drop(self.self_attn(self.input_layernorm(x)))
            return x + self.drop(self.mlp(self.post_attention_layernorm(x)))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed_tokens = nn.Embedding(SHAPE["vocab_size"], C)
            nn.init.normal_(self.embed_tokens.weight, std=0.02)
            self.layers = nn.ModuleList(Layer() for _ in range(SHAPE["num_hidden_layers"]))
            self.norm, self.drop = nn.RMSNorm(C, EPSILON), nn.Dropout(dropout)

        def forward(self, ids):
            x = self.drop(self.embed_tokens(ids))
            for layer in self.layers:
                x = layer(x)
            return self.norm(x) @ self.embed_tokens.weight.t()

    return Model()


def train(steps: int, dropout: float, batch: int, rate: float, device: str, minutes: float) -> None:
    """Five million parameters soon know such a text by heart, so two results are kept: "best", the weights with the
    least loss on entries that were not trained on, and "last", those that know the others best, which answer."""
    import torch

    torch.manual_seed(SEED)
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    with np.load(WORK / "tokens.npz") as file:
        tokens = {name: torch.tensor(file[name].astype(np.int64), device=device) for name in file.files}
    length = min(SHAPE["max_position_embeddings"], len(tokens["held_out"]) - 1)
    model = make_model(torch, dropout).to(device)
    wide = [parameter for parameter in model.parameters() if parameter.ndim == 2]
    narrow = [parameter for parameter in model.parameters() if parameter.ndim < 2]
    optimizer = torch.optim.AdamW([{"params": wide, "weight_decay": 0.1}, {"params": narrow, "weight_decay": 0.0}],
                                  lr=rate, betas=(0.9, 0.98), fused=device == "cuda")
    cast = torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda")
    run = torch.compile(model) if device == "cuda" else model
    generator = torch.Generator().manual_seed(SEED)
    last = len(tokens["train"]) - length - 1
    begins = (tokens["train"][:-1] == 0).nonzero()[:, 0].cpu()  # where a text begins
    begins = begins[begins <= last]
    offsets = torch.arange(length + 1, device=device)

    def windows():
        """Half of them begin with a text, as a conversation does; the others anywhere, so that all of it is read."""
        anywhere = torch.randint(last + 1, (batch - batch // 2,), generator=generator)
        texts = begins[torch.randint(len(begins), (batch // 2,), generator=generator)]
        at = torch.cat([anywhere, texts]).to(device)
        return tokens["train"][at[:, None] + offsets]

    def loss_of(rows, run=run):
        return torch.nn.functional.cross_entropy(run(rows[:, :-1]).float().flatten(0, 1), rows[:, 1:].flatten())

    @torch.no_grad()
    def held_out_loss():
        model.eval()
        rows = tokens["held_out"].unfold(0, length + 1, length)
        with cast:
            losses = [(loss_of(part, model).item(), len(part)) for part in rows.split(batch)]  # not compiled
        model.train()
        return sum(loss * count for loss, count in losses) / sum(count for _, count in losses)

    def weights():
        """bfloat16, as uint16."""
        return {name: parameter.detach().bfloat16().view(torch.int16).cpu().numpy().view(np.uint16)
                for name, parameter in model.named_parameters()}

    name = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    record = {"device": name, "torch": torch.__version__, "batch": batch, "length": length, "rate": rate, "seed": SEED,
              "steps": steps, "dropout": dropout, "parameters": sum(each.numel() for each in model.parameters()),
              "train_tokens": len(tokens["train"]), "held_out_tokens": len(tokens["held_out"]), "log": []}
    print(f"{steps} steps, dropout {dropout}, {record['parameters']:,} parameters, on {name}")
    began, least = time.perf_counter(), math.inf
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
        out_of_time = time.perf_counter() - began > 60 * minutes
        if step % every == 0 or step == steps or out_of_time:
            held_out = held_out_loss()
            record["log"].append({"step": step, "loss": round(loss.item(), 4), "held_out": round(held_out, 4),
                                  "seconds": round(time.perf_counter() - began, 1)})
            print(f"step {step:5}  loss {loss.item():.3f}  held out {held_out:.3f}  rate {now:.1e}  "
                  f"{record['log'][-1]['seconds']:.0f} s", flush=True)
            if held_out < least:
                least = held_out
                np.savez(WORK / "weights-best.npz", **weights())
                record["best"] = record["log"][-1]
        if out_of_time:
            print("stopped: the time is up")
            break
    record["last"] = record["log"][-1]
    np.savez(WORK / "weights-last.npz", **weights())
    with torch.no_grad():  # what is kept is rounded
        for parameter in model.parameters():
            parameter.copy_(parameter.bfloat16().float())
    record["last"]["held_out_in_bfloat16"] = round(held_out_loss(), 4)
    (WORK / "training.json").write_text(json.dumps(record, indent=1) + "\n")


# --- finish: weights -> data/tiny-llama ------------------------------------------------------------------------------


def write_bfloat16(tensors: dict[str, np.ndarray], path: Path) -> None:
    """A file of safetensors; uint16 holds bfloat16, for which the library's part for NumPy has no type."""
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for name, array in tensors.items():
        header[name] = {"dtype": "BF16", "shape": list(array.shape), "data_offsets": [end, end + array.nbytes]}
        end += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # numbers begin at a multiple of 8 bytes
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(array.tobytes() for array in tensors.values()))


def finish(result: Path, keep: str) -> None:
    result.mkdir(parents=True, exist_ok=True)
    with np.load(WORK / f"weights-{keep}.npz") as file:
        write_bfloat16({f"model.{name}": file[name] for name in file.files}, result / "model.safetensors")
    (result / "config.json").write_text(json.dumps({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "attention_bias": False,
        "mlp_bias": False, "rms_norm_eps": EPSILON, "rope_theta": THETA, "tie_word_embeddings": True, "bos_token_id": 0,
        "eos_token_id": [SPECIAL.index("<|end|>"), 0], "torch_dtype": "bfloat16", **SHAPE}, indent=2) + "\n")
    (result / "tokenizer.json").write_bytes((WORK / "tokenizer.json").read_bytes())
    (result / "tokenizer_config.json").write_text(json.dumps({
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": END, "eos_token": "<|end|>",
        "model_max_length": SHAPE["max_position_embeddings"], "clean_up_tokenization_spaces": False,
        "chat_template": TEMPLATE}, indent=2) + "\n")
    record = json.loads((WORK / "training.json").read_text())
    (result / "training.json").write_text(json.dumps({"kept": keep, **record}, indent=1) + "\n")
    size = sum(file.stat().st_size for file in result.iterdir())
    print(f"{result}: {size:,} bytes")
    if size >= LARGEST:
        raise SystemExit(f"more than {LARGEST / 1e6:.0f} MB")
    for question in ("What is a hacker?", "What is a kludge?", "Define foo.", "What does grok mean?"):
        print(f"\n{question}\n{answer(result, question)}")


def answer(folder: Path, question: str, most: int = 120) -> str:
    """The likeliest answer, in float32: a check of what was written, not of its speed."""
    from labkit.models.llama import SingleSequence
    from labkit.models.load import load

    loaded = load(str(folder), dtype="float32")
    ids = loaded.tokenizer.chat([{"role": "user", "content": question}])
    alone, tokens = SingleSequence(loaded.model, context=min(len(ids) + most, SHAPE["max_position_embeddings"])), []
    logits = alone(ids)
    while alone.length < alone.context:
        tokens.append(int(np.argmax(logits.copy_to_host()[0])))
        if tokens[-1] in loaded.tokenizer.stop:
            break
        logits = alone(tokens[-1:])
    return loaded.tokenizer.decode(tokens)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("prepare", help="text -> tokenizer and tokens")
    command.add_argument("texts", nargs="+", type=Path, help="dictionaries in dictd's format, .dict or .dict.dz")
    command = commands.add_parser("train", help="tokens -> weights; needs torch")
    command.add_argument("--steps", type=int, default=6000)
    command.add_argument("--dropout", type=float, default=0.1)
    command.add_argument("--batch", type=int, default=32)
    command.add_argument("--rate", type=float, default=1.5e-3)
    command.add_argument("--device", default="", help="cuda or cpu; cuda if there is one")
    command.add_argument("--minutes", type=float, default=5.0, help="stop after so many, wherever it is")
    command = commands.add_parser("finish", help="weights -> data/tiny-llama, and answers")
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
