"""Make tests/golden/gpt2-random: a small GPT-2 with random weights, and what transformers computes with it.

    python scripts/make_golden.py            needs torch and transformers; the tests that read the files need neither

Every parameter is random, biases and LayerNorms too, which are zeros and ones in a fresh model: a bias that is
forgotten must show. The logits are computed in float64. Greedy tokens are computed in float32, as they usually are; the
script refuses weights with which two tokens are so close at some step that a rounding could decide.
"""

import json
from pathlib import Path

import numpy as np
import torch
import transformers

FOLDER = Path(__file__).resolve().parent.parent / "tests" / "golden" / "gpt2-random"
SHAPE = {"vocab_size": 97, "n_positions": 128, "n_embd": 48, "n_layer": 2, "n_head": 3}
PROMPT, GREEDY, SEED = 24, 64, 1
LEAST_MARGIN = 1e-3  # between the first and the second token at each greedy step; float32 misses by about 1e-5
LEAST_DIFFERENT = 24  # tokens among the greedy ones


def random_model(seed: int) -> transformers.GPT2LMHeadModel:
    config = transformers.GPT2Config(**SHAPE, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
                                     bos_token_id=None, eos_token_id=None)
    model = transformers.GPT2LMHeadModel(config).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if "ln_" in name and name.endswith("weight"):
                parameter.copy_(1 + 0.2 * noise)
            elif parameter.ndim == 1:
                parameter.copy_(0.2 * noise)
            elif "wte" in name or "wpe" in name:  # positions count for more, or the same token would come for ever
                parameter.copy_((0.3 if "wte" in name else 1.0) * noise)
            else:
                parameter.copy_(2 * noise / parameter.shape[0] ** 0.5)
    return model


@torch.no_grad()
def greedy(model, ids: list[int], count: int) -> tuple[list[int], float]:
    """`count` tokens, each the likeliest, and the smallest margin by which one was."""
    ids, margin = list(ids), float("inf")
    for _ in range(count):
        best = model(torch.tensor([ids])).logits[0, -1].topk(2)
        margin = min(margin, float(best.values[0] - best.values[1]))
        ids.append(int(best.indices[0]))
    return ids[-count:], margin


def main() -> None:
    model = random_model(SEED)
    ids = np.random.default_rng(SEED).integers(0, SHAPE["vocab_size"], PROMPT).tolist()
    tokens, margin = greedy(model, ids, GREEDY)
    if margin < LEAST_MARGIN or len(set(tokens)) < LEAST_DIFFERENT:
        raise SystemExit(f"seed {SEED}: margin {margin:.2g}, {len(set(tokens))} different tokens; try another seed")
    FOLDER.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(FOLDER)
    (FOLDER / "generation_config.json").unlink(missing_ok=True)
    (FOLDER / "model.safetensors").chmod(0o644)
    with torch.no_grad():
        logits = model.double()(torch.tensor([ids])).logits[0].numpy()
    again, _ = greedy(model, ids, GREEDY)
    if again != tokens:
        raise SystemExit("float64 gives other tokens")
    np.save(FOLDER / "logits.npy", logits)
    (FOLDER / "expected.json").write_text(json.dumps({
        "prompt": ids, "greedy": tokens, "least_margin": margin,
        "made_by": f"scripts/make_golden.py, torch {torch.__version__}, transformers {transformers.__version__}",
    }) + "\n")
    print(f"{FOLDER}: {sum(file.stat().st_size for file in FOLDER.iterdir()):,} bytes, margin {margin:.3g}, "
          f"{len(set(tokens))} different tokens of {GREEDY}")


if __name__ == "__main__":
    main()
