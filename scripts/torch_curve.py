"""Record PyTorch's losses over 100 steps in float32, from the start and on the batches of labkit's tests:

    python scripts/torch_curve.py        # on a CPU, some seconds; writes tests/train/golden_curve.json

The models are transformers'; AdamW, clipping and the schedule are PyTorch's, so nothing of labkit but the start, the
windows and the learning rates is in it.
"""

import json
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]
from labkit.train.checkpoint import config_json  # noqa: E402
from labkit.train.parameters import initial, layout  # noqa: E402
from tests.train.tiny import settings_of, texts_of  # noqa: E402

TRAIN = {"steps": 100, "warm_up": 10, "batch": 2, "accumulation": 1, "held_out_every": 100}
RESULT = ROOT / "tests" / "train" / "golden_curve.json"


def losses_of(kind: str) -> list[float]:
    import torch
    import transformers

    settings = settings_of(kind, **TRAIN)
    config, train, texts = settings.model, settings.train, texts_of(settings)
    entries = config_json(settings)
    if entries["model_type"] == "gpt2":
        entries |= {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    entries.pop("torch_dtype")
    model = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.for_model(entries.pop("model_type"), **entries))
    flat, named = initial(config, train.seed), dict(model.named_parameters())
    for tensor in layout(config):
        values, begin = flat[tensor.offset : tensor.offset + tensor.size].reshape(tensor.shape), 0
        for name, shape in tensor.parts.items():
            part = values.T if tensor.transposed else values[begin : begin + shape[0]]
            target = named[name if name in named else config.prefix + name]
            target.data.copy_(torch.from_numpy(np.ascontiguousarray(part)))
            begin += shape[0]
    groups = [{"params": [one for one in named.values() if one.ndim == 2], "weight_decay": train.weight_decay},
              {"params": [one for one in named.values() if one.ndim == 1], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, betas=tuple(train.betas), eps=1e-8)
    losses = []
    for step, rate in enumerate(train.rates().tolist(), 1):
        ids, targets = (torch.from_numpy(one.reshape(train.batch, -1)).long() for one in texts.batch(step))
        logits = model(ids).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), train.clip)
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        losses.append(round(loss.item(), 6))
    return losses


if __name__ == "__main__":
    RESULT.write_text(json.dumps({"train": TRAIN, "losses": {kind: losses_of(kind) for kind in ("gpt2", "tied llama")}})
                      + "\n", encoding="utf-8")
