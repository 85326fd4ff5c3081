"""Make what data/tiny-gpt2 and data/tiny-llama are trained on: tokenizers and tokens, from the Jargon File.

    apt-get download dict-jargon && dpkg-deb -x dict-jargon_*.deb .
    python scripts/jargon.py usr/share/dictd/jargon.dict.dz       # writes build/jargon/gpt2 and build/jargon/llama
    labkit train data/tiny-gpt2.toml --out build/tiny-gpt2        # on a GPU: ten seconds, and the compilation
    labkit train data/tiny-llama.toml --out build/tiny-llama

The text is the Jargon File 4.4.7 (public domain) as Debian's package dict-jargon carries it: a dictionary in dictd's
format, in which a headword begins at the left edge, its description is indented, and the file is compressed by
dictzip, which gzip reads. A file that is not compressed is read, too. An entry becomes one text,

    headword: /pronunciation/, n. first paragraph, unwrapped
    second paragraph

without the braces of its cross-references, and without drawings and programs. The GPT-2 is trained on these; the Llama
also on a few short conversations for each: a question about the headword, and the first paragraph of the description
without its grammar,

    <|user|>What is a hacker?<|end|><|assistant|>A person who enjoys exploring the details of ...<|end|>
"""

import argparse
import gzip
import json
import random
import re
from pathlib import Path

import numpy as np

from labkit.train.texts import END, train_tokenizer

WORK = Path(__file__).resolve().parent.parent / "build" / "jargon"
SPECIAL = (END, "<|user|>", "<|assistant|>", "<|end|>")  # the Llama's tokens 0 to 3; END stands before every text
TEMPLATE = (
    # Many clients always send a system message. The model has never read one, so it is left out.
    "{{ bos_token }}{% for message in messages if message.role != 'system' %}"
    "{{ '<|' + message.role + '|>' + message.content + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}")
HELD_OUT = 20  # every so many-th entry is not trained on
ALWAYS = ("hacker",)  # never held out of the conversations: the first question that everyone asks
QUESTIONS = 3  # for each entry
SEED = 0
SAMPLES, CALIBRATION, MAX_SAMPLE = 60, 40, 600  # texts, and their characters at most


# --- The dictionary's entries ----------------------------------------------------------------------------------------


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


def is_held_out(number: int) -> bool:
    return number % HELD_OUT == HELD_OUT - 1


# --- Conversations ---------------------------------------------------------------------------------------------------

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


def samples(texts: dict[str, list[str]]) -> dict[str, list[str]]:
    """A few short texts of each kind, to see what weights in fewer bits cost: some that were not trained on, some that
    were, and others of those to calibrate with."""
    rng = random.Random(SEED)
    short = {part: [text for text in several if len(text) <= MAX_SAMPLE] for part, several in texts.items()}
    trained = rng.sample(short["train"], min(SAMPLES + CALIBRATION, len(short["train"])))
    return {"held_out": rng.sample(short["held_out"], min(SAMPLES, len(short["held_out"]))),
            "trained": trained[:SAMPLES], "calibration": trained[SAMPLES:]}


# --- Tokens ----------------------------------------------------------------------------------------------------------


def write_tokens(folder: Path, texts: dict[str, list[str]], learn_from: list[str], vocab_size: int,
                 special: tuple[str, ...], **tokenizer_config) -> None:
    """texts: "train" and "held_out" -> texts. learn_from: those that the tokenizer is trained on. special: its first
    tokens, END before all."""
    from tokenizers.processors import TemplateProcessing

    tokenizer = train_tokenizer(learn_from, vocab_size, special)
    # A text begins with END, here and in training: so the model knows that a headword comes first.
    tokenizer.post_processor = TemplateProcessing(single=f"{END} $A", special_tokens=[(END, 0)])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": END, "clean_up_tokenization_spaces": False,
        **tokenizer_config}, indent=2) + "\n")
    for part, several in texts.items():
        encoded = [tokenizer.encode(text).ids for text in several]
        np.save(folder / f"{part}.npy", np.array([token for ids in encoded for token in ids] + [0], np.uint16))
        characters, tokens = sum(map(len, several)), sum(map(len, encoded))
        print(f"{folder.name}, {part}: {len(several):,} texts, {characters:,} characters, {tokens:,} tokens")


def for_gpt2(entries: list[str], folder: Path, vocab_size: int = 2048) -> None:
    texts: dict[str, list[str]] = {"train": [], "held_out": []}
    for number, text in enumerate(entries):
        texts["held_out" if is_held_out(number) else "train"].append(text)
    write_tokens(folder, texts, entries, vocab_size, (END,), eos_token=END, model_max_length=256)


def for_llama(entries: list[str], folder: Path, vocab_size: int = 4096) -> None:
    rng = random.Random(SEED)
    texts: dict[str, list[str]] = {"train": [], "held_out": []}
    for number, text in enumerate(entries):
        head, grammar, answer = definition_of(text)
        part = "held_out" if is_held_out(number) and head not in ALWAYS else "train"
        texts[part].append(text)
        if answer:
            texts[part] += [conversation(question, answer) for question in questions_of(head, grammar, rng)]
    sampled = samples(texts)
    rng.shuffle(texts["train"])
    write_tokens(folder, texts, entries, vocab_size, SPECIAL, eos_token=SPECIAL[3], model_max_length=1024,
                 chat_template=TEMPLATE)
    (folder / "texts.json").write_text(json.dumps(sampled, indent=0, ensure_ascii=False) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("paths", nargs="+", type=Path, help="dictionaries in dictd's format, .dict or .dict.dz")
    entries = [text for path in parser.parse_args().paths for text in texts_of(path)]
    for_gpt2(entries, WORK / "gpt2")
    for_llama(entries, WORK / "llama")


if __name__ == "__main__":
    main()
