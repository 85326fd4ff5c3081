"""Training steps of a GPT-2 beside PyTorch's, from the same parameters on the same windows.

    train_step()    GPT-2 small with 16 windows of 1,024 tokens; the course's tiny GPT-2 with 32 of 256

Both sides train in bfloat16 with float32 masters, clip the norm of all gradients and update by AdamW. The vocabulary is
padded to a multiple of 64, as tensor cores need it. PyTorch's models are compiled with and without CUDA graphs, its
AdamW is the fused one, and it never waits for a loss; ours reads each step's losses back.

Prediction, H200: a step of GPT-2 small multiplies 6 * 124e6 parameters by 16,384 tokens, 12.2 TFLOP, and attention adds
1.9: at 650 TFLOP/s 21.7 ms. Norms, GELU, cross entropy and AdamW move 22 GB, 5.5 ms: in all 27 ms. A step of the tiny
one is 0.4 TFLOP in 150 launches: 2 ms.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable

import numpy as np

from labkit import cuda, device, measure
from labkit.kernels.norm.layernorm import EPSILON
from labkit.measure.series.beside_torch import why_not
from labkit.measure.series.llama import say
from labkit.measure.timing import Timing
from labkit.models.configs import GPT2Config
from labkit.train.parameters import initial, layout
from labkit.train.settings import Settings
from labkit.train.texts import Texts
from labkit.train.trainer import EPS, Trainer

SMALL = {"vocab_size": 50_304, "n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12}
TINY = {"vocab_size": 2048, "n_positions": 256, "n_embd": 256, "n_layer": 6, "n_head": 8}
ON_CPU = {"vocab_size": 128, "n_positions": 32, "n_embd": 32, "n_layer": 1, "n_head": 1}
RUNS = {"GPT-2 small": (SMALL, 16, 1024), "tiny GPT-2": (TINY, 32, 256)}
RUNS_HERE = {"GPT-2 of one layer": (ON_CPU, 2, 32)}
WAYS = {"eager": None, "compiled": "default", "compiled, in CUDA graphs": "reduce-overhead"}
STEPS, REPEATS = 10, 5  # steps between two looks at the clock, and how often
COMPARED = 5  # steps after which both losses are compared
MAX_DIFFERENCE = 0.02  # of these losses, relative


def settings_of(model: dict, batch: int, length: int) -> Settings:
    return Settings.of({"model": {"model_type": "gpt2"} | model, "data": {"tokens": ["random"], "tokenizer": "."},
                        "train": {"batch": batch, "length": length, "dtype": "bfloat16", "warm_up": 1}})


def random_texts(settings: Settings) -> Texts:
    """Tokens of which small ones are common, so that there is something to learn."""
    ids = np.random.default_rng(0).geometric(0.02, 40 * settings.train.length * settings.train.batch)
    return Texts(settings, ids % settings.model.vocab_size, None)


def step_timing(step: Callable[[], object], steps: int, repeats: int) -> Timing:
    """Milliseconds of a step, by the clock over several in a row."""
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        for _ in range(steps):
            step()
        cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - begin) / steps)
    return Timing.of(times, device.name())


def torch_loss(torch, config: GPT2Config, w: dict, ids, targets):
    """The mean loss. w: parameters by the names and in the shapes of labkit.train.parameters."""
    F, (batch, length) = torch.nn.functional, ids.shape

    def norm(x, name):
        return F.layer_norm(x, (config.n_embd,), w[f"{name}.weight"], w[f"{name}.bias"], EPSILON)

    def product(x, name):
        return F.linear(x, w[f"{name}.weight"], w[f"{name}.bias"])

    x = F.embedding(ids, w["wte.weight"]) + w["wpe.weight"][:length]
    for layer in range(config.n_layer):
        h = f"h.{layer}."
        qkv = product(norm(x, h + "ln_1"), h + "attn.c_attn").view(batch, length, 3, config.n_head, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(x.shape)
        x = x + product(attended, h + "attn.c_proj")
        x = x + product(F.gelu(product(norm(x, h + "ln_2"), h + "mlp.c_fc"), approximate="tanh"), h + "mlp.c_proj")
    logits = F.linear(norm(x, "ln_f"), w["wte.weight"])
    return F.cross_entropy(logits.view(-1, config.vocab_size), targets.view(-1))


class TorchTrainer:
    """PyTorch's training of the same model. mode: torch.compile's; None for eager."""

    def __init__(self, torch, settings: Settings, texts: Texts, mode: str | None, device: str = "cuda"):
        self.torch, self.settings, self.texts, self.device, self.steps = torch, settings, texts, device, 0
        flat = initial(settings.model, settings.train.seed)
        self.parameters = {one.name: torch.tensor(flat[one.offset : one.offset + one.size].reshape(one.shape),
                                                  device=device, requires_grad=True)
                           for one in layout(settings.model)}
        several = [one for one in self.parameters.values() if one.ndim == 2]
        train = settings.train
        groups = [{"params": several, "weight_decay": train.weight_decay},
                  {"params": [one for one in self.parameters.values() if one.ndim == 1], "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, betas=tuple(train.betas), eps=EPS, fused=device == "cuda")
        self.loss = functools.partial(torch_loss, torch, settings.model)
        if mode is not None:
            torch.compiler.reset()
            self.loss = torch.compile(self.loss, dynamic=False, fullgraph=True, mode=mode)

    def one_step(self):
        """Train on the next step's windows; return the loss before the update, on the device."""
        torch, train = self.torch, self.settings.train
        self.steps += 1
        ids, targets = (torch.from_numpy(one.reshape(train.batch, -1)).to(self.device, torch.int64, non_blocking=True)
                        for one in self.texts.batch(self.steps))
        with torch.autocast(self.device, torch.bfloat16):
            loss = self.loss(self.parameters, ids, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.parameters.values(), train.clip)
        for group in self.optimizer.param_groups:
            group["lr"] = float(train.rates()[self.steps - 1])
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach().clone()  # of a CUDA graph, the next replay overwrites it


def torch_step(torch, settings: Settings, texts: Texts, mode: str | None, ours: float) -> dict:
    """ms of a step, or "why" there is none. ours: the loss to be compared."""
    try:
        with torch.enable_grad():
            trainer = TorchTrainer(torch, settings, texts, mode)
            loss = [trainer.one_step() for _ in range(COMPARED)][-1].item()
            if not abs(loss - ours) < MAX_DIFFERENCE * ours:
                raise ArithmeticError(f"loss {loss:.4f}; ours is {ours:.4f}")
            return {"ms": step_timing(trainer.one_step, STEPS, REPEATS).percentiles(), "loss": loss}
    except Exception as error:  # what cannot be compiled here must not cost the other rows
        return {"ms": None, "why": why_not(error)}


def train_step(runs: dict | None = None) -> dict:
    """Milliseconds of a step of each run, ours and PyTorch's in several ways, and the losses after COMPARED steps."""
    runs, torch, rows = runs or device.pick(gpu=RUNS, cpu=RUNS_HERE), measure.torch_on_gpu(), []
    for name, (model, batch, length) in runs.items():
        settings = settings_of(model, batch, length)
        texts = random_texts(settings)
        trainer = Trainer(settings, texts)
        loss = [trainer.one_step() for _ in range(COMPARED)][-1]
        steps, repeats = device.pick(gpu=(STEPS, REPEATS), cpu=(1, 2))
        ms = step_timing(trainer.one_step, steps, repeats)
        row = {"run": name, "batch": batch, "length": length, "parameters": settings.model.parameters, "loss": loss,
               "ms": ms.percentiles(), "peak": trainer.share_of_peak(1e3 * batch * length / ms.p50), "torch": None}
        say(f"train_step: {name}, {ms.p50:.2f} ms, loss {loss:.4f}")
        del trainer
        if torch is not None:
            details = {way: torch_step(torch, settings, texts, mode, loss) for way, mode in WAYS.items()}
            row["torch"] = {way: one["ms"] and one["ms"]["p50"] for way, one in details.items()}
            row["torch_details"] = details
            say("train_step: PyTorch, " + "; ".join(f"{way} {one['ms']['p50']:.2f} ms" if one["ms"] else
                                                    f"{way}: {one['why']}" for way, one in details.items()))
        rows.append(row)
    return measure.stamped({"dtype": "bfloat16", "steps": COMPARED, "rows": rows})
