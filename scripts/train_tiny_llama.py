"""Train data/tiny-llama: a Llama of five million parameters that answers questions with the Jargon File's definitions.

    apt-get download dict-jargon && dpkg-deb -x dict-jargon_*.deb .
    python scripts/train_tiny_llama.py prepare usr/share/dictd/jargon.dict.dz    # text -> tokenizer, tokens
    python scripts/train_tiny_llama.py train                                     # on a GPU: minutes; needs torch only
    python scripts/train_tiny_llama.py finish                                    # weights -> safetensors, samples

The text is that of scripts/train_tiny_gpt2.py, which reads it. An entry is trained on as it is, and as a few short
conversations: a question about the headword, and the first paragraph of the description without its grammar,

    <|user|>What is a hacker?<|end|><|assistant|>A person who enjoys exploring the details of ...<|end|>

The result is what transformers loads as a LlamaForCausalLM: grouped-query attention 2:1, a tied head, bfloat16.
Between the steps, files lie in build/tiny-llama.
"""

import json
import random
import re
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]
import tiny_training  # noqa: E402, found beside this script
from tiny_training import END, HELD_OUT, SEED  # noqa: E402
from train_tiny_gpt2 import texts_of  # noqa: E402

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
TEXTS = "texts.json"
SAMPLES, CALIBRATION, MAX_SAMPLE = 60, 40, 600  # texts, and their characters at most


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
    entries = [text for path in paths for text in texts_of(path)]
    rng = random.Random(SEED)
    texts: dict[str, list[str]] = {"train": [], "held_out": []}
    for number, text in enumerate(entries):
        head, grammar, answer = definition_of(text)
        part = "held_out" if number % HELD_OUT == HELD_OUT - 1 and head not in ALWAYS else "train"
        texts[part].append(text)
        if answer:
            texts[part] += [conversation(question, answer) for question in questions_of(head, grammar, rng)]
    sampled = samples(texts)
    rng.shuffle(texts["train"])
    tiny_training.write_tokens(WORK, texts, entries, SHAPE["vocab_size"], SPECIAL)
    (WORK / TEXTS).write_text(json.dumps(sampled, indent=0, ensure_ascii=False) + "\n", encoding="utf-8")


def samples(texts: dict[str, list[str]]) -> dict[str, list[str]]:
    """A few short texts of each kind, to see what weights in fewer bits cost: some that were not trained on, some that
    were, and others of those to calibrate with."""
    rng = random.Random(SEED)
    short = {part: [text for text in several if len(text) <= MAX_SAMPLE] for part, several in texts.items()}
    trained = rng.sample(short["train"], min(SAMPLES + CALIBRATION, len(short["train"])))
    return {"held_out": rng.sample(short["held_out"], min(SAMPLES, len(short["held_out"]))),
            "trained": trained[:SAMPLES], "calibration": trained[SAMPLES:]}


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
    trainer = tiny_training.Trainer(WORK, device, minutes, as_bfloat16)
    torch = trainer.torch
    torch.manual_seed(SEED)
    length = min(SHAPE["max_position_embeddings"], len(trainer.tokens["held_out"]) - 1)
    model = make_model(torch, dropout).to(trainer.device)
    record = trainer.facts(batch, rate) | {"length": length, "steps": steps, "dropout": dropout,
                                           "parameters": sum(each.numel() for each in model.parameters())}
    print(f"{steps} steps, dropout {dropout}, {record['parameters']:,} parameters, on {trainer.name}")
    compiled = torch.compile(model) if trainer.device == "cuda" else model
    record["log"], best = trainer.run(model, steps, length, batch, rate, compiled)
    record["best"], record["last"] = min(record["log"], key=lambda line: line["held_out"]), record["log"][-1]
    np.savez(WORK / "weights-best.npz", **best)
    np.savez(WORK / "weights-last.npz", **trainer.weights(model))
    with torch.no_grad():  # what is kept is rounded
        for parameter in model.parameters():
            parameter.copy_(parameter.bfloat16().float())
    record["last"]["held_out_in_bfloat16"] = round(trainer.held_out_loss(model, length, batch), 4)
    tiny_training.write_record(WORK, record)


def as_bfloat16(parameter) -> np.ndarray:
    """As uint16."""
    import torch

    return parameter.bfloat16().view(torch.int16).cpu().numpy().view(np.uint16)


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
    tiny_training.write_model(WORK, result, keep, {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "attention_bias": False,
        "mlp_bias": False, "rms_norm_eps": EPSILON, "rope_theta": THETA, "tie_word_embeddings": True, "bos_token_id": 0,
        "eos_token_id": [SPECIAL.index("<|end|>"), 0], "torch_dtype": "bfloat16", **SHAPE},
        {"eos_token": "<|end|>", "model_max_length": SHAPE["max_position_embeddings"], "chat_template": TEMPLATE})
    (result / TEXTS).write_bytes((WORK / TEXTS).read_bytes())
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


if __name__ == "__main__":
    tiny_training.main(__doc__, prepare, train, finish, RESULT, steps=6000, dropout=0.1, batch=32, rate=1.5e-3,
                       minutes=5.0)
