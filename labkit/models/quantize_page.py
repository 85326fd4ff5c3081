"""What fewer bits cost data/tiny-llama: bytes, the loss on two kinds of texts, and answers that change. With NumPy, in
float32, so the rounding of activations is not part of it.

    python -m labkit.models.quantize_page        # writes data/quantized.json, and of that data/quantized.md
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from labkit._common.files import read_json, write_text
from labkit._common.paths import find_root
from labkit.kernels.linear.quantized import E4M3, INT4, INT8
from labkit.models.configs import LlamaConfig
from labkit.models.gpt2_reference import weights_of
from labkit.models.llama_reference import activations
from labkit.models.load import TINY_LLAMA, folder, tensors
from labkit.models.quantize import Scheme, quantize
from labkit.models.quantized_folder import parts_of
from labkit.models.tokenizer import CONFIG, Tokenizer

GROUP, VOCABULARY = 64, 4096
ROWS = {  # a format -> its scheme, and whether it is calibrated
    "bfloat16": (None, False), "int8": (Scheme(INT8), False), "fp8 (E4M3)": (Scheme(E4M3), False),
    "int4, rounded to nearest": (Scheme(INT4, GROUP), False), "int4, GPTQ": (Scheme(INT4, GROUP), True),
    "int4 with zeros, rounded to nearest": (Scheme(INT4, GROUP, True), False),
    "int4 with zeros, GPTQ": (Scheme(INT4, GROUP, True), True),
}  # fmt: skip
PROMPTS, TOKENS = 24, 24  # questions, and tokens of an answer at most
ANSWER = "<|assistant|>"


def measure(source: Path, texts: Mapping[str, Sequence[str]], rows: Mapping = ROWS) -> dict:
    """Quantise the model in a folder in each way, and return what the page shows. texts: as in texts.json."""
    config, tokenizer = LlamaConfig.read(source / CONFIG), Tokenizer.of(source)
    w = {name: array.astype(np.float32) for name, array in weights_of(tensors(source), config).items()}
    ids = {part: [tokenizer.encode(text) for text in several] for part, several in texts.items()}
    questions = [text.partition(ANSWER)[0] + ANSWER for text in texts["trained"] if ANSWER in text][:PROMPTS]
    prompts = [tokenizer.encode(text) for text in questions]
    answers = [greedy(config, w, prompt, tokenizer.stop) for prompt in prompts]
    result = {"prompts": len(prompts), "answer_tokens": sum(map(len, answers)),
              "texts": {part: len(several) for part, several in ids.items()},
              "tokens": {part: sum(map(len, several)) for part, several in ids.items()}, "rows": []}
    for name, (scheme, calibrated) in rows.items():
        model, nbytes = dict(w), {param: 2 * array.size for param, array in w.items()}
        if scheme is not None:
            for param, quantized in quantize(config, w, scheme, ids["calibration"] if calibrated else None):
                model[param] = quantized.dequantize().astype(np.float32)
                nbytes[param] = sum(array.nbytes for array, _ in parts_of(quantized).values())
        linear = [param for param in w if "_proj" in param]
        same = [chosen(config, model, prompt, answer) == answer
                for prompt, answer in zip(prompts, answers, strict=True)]
        result["rows"].append({
            "format": name, "bytes": sum(nbytes.values()), "linear_bytes": sum(nbytes[param] for param in linear),
            "bits": 8 * sum(nbytes[param] for param in linear) / sum(w[param].size for param in linear),
            "held_out": loss(config, model, ids["held_out"]), "trained": loss(config, model, ids["trained"]),
            "same_answers": int(sum(map(all, same))), "same_tokens": int(sum(part.sum() for part in same))})
    return result


def logits_of(config: LlamaConfig, w: Mapping[str, np.ndarray], ids: Sequence[int]) -> np.ndarray:
    return activations(config, w, ids, dtype=np.float32)["logits"]


def loss(config: LlamaConfig, w: Mapping[str, np.ndarray], texts: Sequence[Sequence[int]]) -> float:
    """The mean over all tokens but the first of each text of -log(probability)."""
    total = 0.0
    for ids in texts:
        logits = logits_of(config, w, ids)[:-1].astype(np.float64)
        logits -= logits.max(axis=1, keepdims=True)
        total += (np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(logits)), ids[1:]]).sum()
    return float(total / sum(len(ids) - 1 for ids in texts))


def greedy(config: LlamaConfig, w: Mapping[str, np.ndarray], prompt: Sequence[int], stop: Sequence[int]) -> np.ndarray:
    """The likeliest tokens after a prompt, one after the other."""
    ids = list(prompt)
    while len(ids) < len(prompt) + TOKENS and (len(ids) == len(prompt) or ids[-1] not in stop):
        ids.append(int(logits_of(config, w, ids)[-1].argmax()))
    return np.array(ids[len(prompt) :])


def chosen(config: LlamaConfig, w: Mapping[str, np.ndarray], prompt: Sequence[int], answer: np.ndarray) -> np.ndarray:
    """The likeliest token in each place of an answer, after the answer's own tokens before it. Where all are the
    answer's, so is what the model writes."""
    return logits_of(config, w, [*prompt, *answer[:-1]])[len(prompt) - 1 :].argmax(axis=1)


def page(result: Mapping) -> str:
    """The page in Markdown."""
    texts, tokens = result["texts"], result["tokens"]
    lines = [
        "# Weights in 8 and 4 bits", "",
        "What `data/tiny-llama` loses when its linear layers are stored in fewer bits; the embedding, which is also "
        "the head, and the norms stay in bfloat16. Made by `python -m labkit.models.quantize_page` with NumPy in "
        "float32, so that only the weights differ. No published checkpoint was loaded: the readers of the AWQ, GPTQ "
        "and compressed-tensors layouts are tested with files that the tests pack from the formats' documentation.", "",
        "| linear layers | bits per weight | their MB | total MB | loss, held-out texts | loss, training texts | "
        "same tokens | same answers |", "|---|---|---|---|---|---|---|---|"]
    for row in result["rows"]:
        lines.append(
            f"| {row['format']} | {row['bits']:.2f} | {row['linear_bytes'] / 1e6:.2f} | {row['bytes'] / 1e6:.2f} | "
            f"{row['held_out']:.3f} | {row['trained']:.4f} | {row['same_tokens'] / result['answer_tokens']:.1%} | "
            f"{row['same_answers']} of {result['prompts']} |")
    lines += [
        "", f"- **Loss**: the mean of -log(probability) per token, over {texts['held_out']} texts with "
        f"{tokens['held_out']:,} tokens that the model was not trained on, and {texts['trained']} texts with "
        f"{tokens['trained']:,} tokens that it was trained on. It knows its book by heart: unknown texts surprise it "
        f"so much (a loss of {result['rows'][0]['held_out']:.1f}, where a uniform guess among {VOCABULARY:,} tokens "
        f"has {math.log(VOCABULARY):.1f}) that rounding changes little; what rounding costs shows in the texts that it "
        f"knows.",
        f"- **Same tokens, same answers**: {result['prompts']} questions, answered greedily in bfloat16 with up to "
        f"{TOKENS} tokens; how many of these tokens the quantised model also chooses, given the tokens before it, and "
        f"how many answers it reproduces exactly.",
        f"- **INT4** has groups of {GROUP}, the largest that divides the MLP's width of 704, each with a bfloat16 "
        f"scale; **with zeros**, each group also has a 4-bit zero point, so that its codes span the range from its "
        f"smallest weight to its largest. INT8 and FP8 have one scale per row.",
        f"- **GPTQ** is calibrated with {texts['calibration']} other texts that the model was trained on, "
        f"{tokens['calibration']:,} tokens. The columns after each column compensate for its rounding errors.",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    source = folder(TINY_LLAMA)
    measured = measure(source, read_json(source / "texts.json"))
    write_text(find_root() / "data" / "quantized.json", json.dumps(measured, indent=1) + "\n")
    write_text(find_root() / "data" / "quantized.md", page(measured))
