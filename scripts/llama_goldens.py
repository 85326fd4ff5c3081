"""Make tests/golden/llama: small models with random weights, and what transformers computes with them.

    python scripts/llama_goldens.py          needs torch and transformers; the tests that read the files need neither

Three shapes of LlamaForCausalLM and a Qwen3. Weights are bfloat16 numbers, every one of them random, norms and biases
too: one that is forgotten must show. For each model:

    prompt      logits after each token in float64, every layer's output at three positions in float32 and in bfloat16,
                64 greedy tokens in float32, as they usually are computed
    far         the same tokens at positions that jump to 4,000 and to 7,900: logits, and greedy tokens up to 8,000
    long        of llama2: 8,000 random tokens; logits after each 1,000

The script takes the first seed with which no two tokens are so close at any step that a rounding could decide.
transformers computes angles in float32 whatever the model's type: at position 8,000 they are off by about 0.0005.
"""

import argparse
import json
import shutil
from pathlib import Path

import numpy as np
import torch
import transformers

FOLDER = Path(__file__).resolve().parent.parent / "tests" / "golden" / "llama"
COMMON = {"vocab_size": 97, "num_hidden_layers": 2, "max_position_embeddings": 8192, "bos_token_id": None,
          "eos_token_id": None, "attn_implementation": "eager"}
MODELS = {
    # A head of its own, as many heads of keys as of queries.
    "llama2": (transformers.LlamaConfig, {"hidden_size": 64, "intermediate_size": 160, "num_attention_heads": 2,
                                          "rms_norm_eps": 1e-5}),
    # Tied, 4:1, angles scaled for a context eight times that of the first training.
    "llama3": (transformers.LlamaConfig, {
        "hidden_size": 128, "intermediate_size": 192, "num_attention_heads": 4, "num_key_value_heads": 1,
        "rms_norm_eps": 1e-5, "tie_word_embeddings": True,
        "rope_parameters": {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
                            "high_freq_factor": 4.0, "original_max_position_embeddings": 1024}}),
    # Tied, 3:1.
    "smollm2": (transformers.LlamaConfig, {
        "hidden_size": 96, "intermediate_size": 160, "num_attention_heads": 3, "num_key_value_heads": 1,
        "rms_norm_eps": 1e-5, "tie_word_embeddings": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 100000.0}}),
    # Norms of queries and keys, biases, heads that are wider than the model shared among them, a head of its own.
    "qwen3": (transformers.Qwen3Config, {
        "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
        "attention_bias": True, "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0}}),
}
LONG, LONG_STEP = 8000, 1000
WITH_LONG = ("llama2",)
IN_SHARDS = ("llama3",)  # in several files with an index, as large models are
PROMPT, GREEDY = 24, 64
AT = (0, 11, 23)  # positions whose layer outputs are kept
FAR = [*range(12), *range(4000, 4006), *range(7930, 7936)]  # the prompt's positions; the greedy tokens' come after
LEAST_MARGIN, LEAST_FAR_MARGIN = 2e-3, 0.02  # between the first and the second token at each greedy step
LEAST_DIFFERENT = 24  # tokens among the greedy ones


def random_model(kind, shape: dict, seed: int):
    config = kind(**COMMON, **shape)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if "norm" in name:
                values = 1 + 0.2 * noise
            elif parameter.ndim == 1:
                values = 0.2 * noise
            elif "embed" in name or "lm_head" in name:
                values = 0.3 * noise
            else:
                values = 2 * noise / parameter.shape[1] ** 0.5
            parameter.copy_(values.bfloat16().float())
    return model


@torch.no_grad()
def run(model, ids: list[int], positions: list[int]):
    """Logits of all tokens and hidden states; the mask keeps transformers from taking a jump for another sequence."""
    return model(torch.tensor([ids]), position_ids=torch.tensor([positions]),
                 attention_mask=torch.ones(1, len(ids), dtype=torch.long), output_hidden_states=True)


def greedy(model, ids: list[int], positions: list[int], count: int) -> tuple[list[int], float]:
    """`count` tokens, each the likeliest, and the smallest margin by which one was."""
    ids, positions, margin = list(ids), list(positions), float("inf")
    for _ in range(count):
        best = run(model, ids, positions).logits[0, -1].topk(2)
        margin = min(margin, float(best.values[0] - best.values[1]))
        ids.append(int(best.indices[0]))
        positions.append(positions[-1] + 1)
    return ids[-count:], margin


def layer_outputs(model, ids: list[int]) -> np.ndarray:
    """(layers, positions, C): the last one before the model's own norm, which hidden_states has after it."""
    found = []
    hooks = [layer.register_forward_hook(lambda _, __, out: found.append(out if torch.is_tensor(out) else out[0]))
             for layer in model.model.layers]
    run(model, ids, list(range(len(ids))))
    for hook in hooks:
        hook.remove()
    return np.array([one[0, list(AT)].float().numpy() for one in found])


def make(name: str) -> None:
    kind, shape = MODELS[name]
    near = list(range(PROMPT))
    for seed in range(1, 200):
        model = random_model(kind, shape, seed)
        ids = np.random.default_rng(seed).integers(0, COMMON["vocab_size"], PROMPT).tolist()
        tokens, margin = greedy(model, ids, near, GREEDY)
        if margin < LEAST_MARGIN or len(set(tokens)) < LEAST_DIFFERENT:
            continue
        far, far_margin = greedy(model, ids, FAR, GREEDY)
        if far_margin >= LEAST_FAR_MARGIN and len(set(far)) >= LEAST_DIFFERENT:
            break
    else:
        raise SystemExit(f"{name}: no seed will do")
    folder = FOLDER / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    in_float32 = layer_outputs(model, ids)
    frequencies = model.model.rotary_emb.inv_freq.clone().numpy()
    in_bfloat16 = random_model(kind, shape, seed).bfloat16()
    in_bfloat16.save_pretrained(folder, **({"max_shard_size": "200KB"} if name in IN_SHARDS else {}))
    (folder / "generation_config.json").unlink(missing_ok=True)
    for file in folder.glob("*.safetensors"):
        file.chmod(0o644)
    rounded = layer_outputs(in_bfloat16, ids)
    model = model.double()
    if greedy(model, ids, near, GREEDY)[0] != tokens or greedy(model, ids, FAR, GREEDY)[0] != far:
        raise SystemExit(f"{name}: float64 gives other tokens")
    more = {}
    if name in WITH_LONG:
        more["long"] = np.random.default_rng(seed).integers(0, COMMON["vocab_size"], LONG)
        with torch.no_grad():
            logits = model(torch.tensor(more["long"])[None]).logits[0, LONG_STEP - 1 :: LONG_STEP]
        more["long_logits"] = logits.numpy()
    np.savez_compressed(
        folder / "expected.npz", logits=run(model, ids, near).logits[0].numpy(),
        far_logits=run(model, ids, FAR).logits[0].numpy(), layers=in_float32, layers_bfloat16=rounded,
        frequencies=frequencies, **more)
    (folder / "expected.json").write_text(json.dumps({
        "prompt": ids, "greedy": tokens, "least_margin": margin, "at": AT, "far_positions": FAR, "far_greedy": far,
        "least_far_margin": far_margin,
        "made_by": f"scripts/llama_goldens.py, torch {torch.__version__}, transformers {transformers.__version__}",
    }) + "\n")
    print(f"{folder}: {sum(file.stat().st_size for file in folder.iterdir()):,} bytes, seed {seed}, margins "
          f"{margin:.3g} and {far_margin:.3g}, {len(set(tokens))} and {len(set(far))} different tokens of {GREEDY}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", help=f"those to make, of {', '.join(MODELS)}; left out, all")
    for name in parser.parse_args().models or MODELS:
        make(name)


if __name__ == "__main__":
    main()
