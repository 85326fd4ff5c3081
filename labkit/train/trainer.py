"""The training loop: passes, gradients of a whole step, clipping, AdamW, and what is reported of it.

    trainer = Trainer(settings, texts)
    for progress in trainer.run():
        print(progress)

A step is two CUDA graphs: the passes and the norm of their gradients; then, once the host has seen that both loss and
norm are finite, AdamW. Data parallel: all_reduce(gradients), called between them, replaces the flat float32 array on
the device by its mean over all processes; the norm is then computed after it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from labkit import cuda, device
from labkit._common.errors import UserError
from labkit.device import gpus, graphs
from labkit.kernels.optim.adamw import adamw, advance
from labkit.kernels.optim.global_norm import global_norm
from labkit.train.model import Kernels, Model, activation_bytes
from labkit.train.parameters import DTYPES, Buffer, elements, initial
from labkit.train.settings import Settings
from labkit.train.texts import Texts

EPS = 1e-8  # AdamW's


@dataclass(frozen=True)
class Progress:
    """What is known after a step. held_out: None where it was not computed. peak: the share of the GPU's peak that the
    model's products reach; None without a data sheet."""

    step: int
    steps: int
    loss: float
    held_out: float | None
    rate: float
    tokens_per_second: float
    peak: float | None
    seconds_left: float

    def __str__(self):
        held_out = "" if self.held_out is None else f", held out {self.held_out:.3f}"
        peak = "" if self.peak is None else f", {self.peak:.0%} of the GPU's peak"
        return (f"step {self.step:,} of {self.steps:,}: loss {self.loss:.3f}{held_out}; "
                f"{self.tokens_per_second:,.0f} tokens/s{peak}; {self.seconds_left:,.0f} s left")


class NotFinite(UserError):
    """A loss or a gradient that is infinite or NaN. The last checkpoint is from before it."""


def bytes_needed(settings: Settings) -> int:
    """The device memory of a run: parameters, gradients, AdamW's state, and what a pass keeps."""
    train, size = settings.train, elements(settings.model)
    copy = 0 if train.dtype == "float32" else DTYPES[train.dtype].itemsize
    return size * (16 + copy) + activation_bytes(settings.model, train.batch * train.length, train.dtype)


def check_memory(settings: Settings, free: int | None = None) -> None:
    """Raise UserError if the run does not fit into the device's memory. free: bytes; None asks the device."""
    needed = bytes_needed(settings)
    free = cuda.current_context().get_memory_info()[0] if free is None else free
    if needed > free:
        raise UserError(f"the run needs {needed / 1e9:.2f} GB of the device's memory, and {free / 1e9:.2f} GB are "
                        f"free. A smaller train.batch with a larger train.accumulation trains the same")


class Trainer:
    """master, m, v: the state to continue from, with the number of steps done; without it a run begins. kernels: the
    launchers of the model, some of them your own."""

    def __init__(self, settings: Settings, texts: Texts, *, state: dict | None = None, step: int = 0,
                 log: list | None = None, all_reduce: Callable | None = None, kernels: Kernels | None = None):
        check_memory(settings)
        train = settings.train
        self.settings, self.texts, self.step, self.all_reduce = settings, texts, step, all_reduce
        self.log = log or []  # of each step: its loss; of some: the held-out loss
        self.buffer = Buffer(settings.model, train.dtype)
        self.buffer.load(state["master"] if state else initial(settings.model, train.seed))
        if state:
            self.buffer.m.copy_to_device(state["m"])
            self.buffer.v.copy_to_device(state["v"])
        self.model = Model(settings.model, self.buffer, batch=train.batch, length=train.length, dtype=train.dtype,
                           kernels=kernels)
        size = train.accumulation, train.batch * train.length
        # What a step copies in and out: ids and targets; losses, the norm of all gradients, and the factor that clips.
        self.windows, self.results = cuda.device_array((2, *size), np.int32), cuda.device_array(
            size[0] * size[1] + 2, np.float32)
        self.windows_on_host, self.results_on_host = (cuda.pinned_array(one.shape, one.dtype)
                                                      for one in (self.windows, self.results))
        self.ids, self.targets = self.windows[0], self.windows[1]
        self.losses, self.norm = self.results[:-2].reshape(size), self.results[-2:]
        self.scale = cuda.to_device(np.array([1 / (size[0] * size[1])], np.float32))
        self.rates, self.rate = cuda.to_device(train.rates()), cuda.device_array(1, np.float32)
        self.steps_done = cuda.to_device(np.array([step], np.int32))
        self.graphs: tuple | None = None
        self.drawn: tuple = ()  # a step, and its windows

    # --- A step ------------------------------------------------------------------------------------------------------

    def passes(self, stream=0) -> None:
        for index in range(self.settings.train.accumulation):
            self.model.forward(self.ids[index], stream)
            self.model.losses = self.losses[index]
            self.model.backward(self.ids[index], self.targets[index], self.scale, index > 0, stream)
        if self.all_reduce is None:
            self.clip(stream)

    def clip(self, stream=0) -> None:
        global_norm(self.buffer.gradient, self.settings.train.clip, self.norm, stream=stream)

    def update(self, stream=0) -> None:
        train, b = self.settings.train, self.buffer
        advance(self.steps_done, self.rates, self.rate, stream=stream)
        adamw(b.master, b.m, b.v, b.gradient, b.copy, b.decayed, self.rate, self.steps_done, self.norm[1:],
              betas=tuple(train.betas), eps=EPS, decay=train.weight_decay, stream=stream)

    def one_step(self) -> float:
        """Train on the next step's windows; return their mean loss before the update."""
        step, windows = self.drawn if self.drawn[:1] == (self.step + 1,) else self.draw(self.step + 1)
        self.windows_on_host[...] = windows
        self.windows.copy_to_device(self.windows_on_host)
        run_passes, run_update = (graph.launch for graph in self.graphs) if self.graphs else (self.passes, self.update)
        run_passes()
        self.drawn = self.draw(step + 1)  # while the device computes
        if self.all_reduce is not None:
            self.all_reduce(self.buffer.gradient)
            self.clip()
        results = self.results.copy_to_host(self.results_on_host).astype(np.float64)
        loss, norm = float(results[:-2].mean()), results[-2]
        if not np.isfinite(loss) or not np.isfinite(norm):
            raise self.not_finite(loss)
        run_update()
        if self.graphs is None:  # every kernel is compiled now
            self.graphs = tuple(graphs.capture(work, warm_up=False) for work in (self.passes, self.update))
        self.step += 1
        return loss

    def draw(self, step: int) -> tuple:
        return step, self.texts.batch(step)

    def not_finite(self, loss: float) -> NotFinite:
        """The error of a step, which names the first tensor that is not finite in the order of the computation."""
        name = self.buffer.first_not_finite(self.buffer.copy) or self.model.first_not_finite()
        name = name or self.buffer.first_not_finite(self.buffer.gradient)
        where = f"; the first tensor that is not finite is {name}" if name else ""
        return NotFinite(f"step {self.step + 1:,}: the loss is {loss:.4g}, and the norm of the gradients "
                         f"{self.norm.copy_to_host()[0]:.4g}{where}. The last checkpoint stays; a lower "
                         f"train.learning_rate or a longer train.warm_up may help")

    def held_out(self) -> float:
        """The mean loss on what was held out."""
        total, count = 0.0, 0
        for ids, targets in self.texts.held_out_batches():
            self.ids[0].copy_to_device(ids)
            self.targets[0].copy_to_device(targets)
            self.model.forward(self.ids[0])
            self.model.losses = self.losses[0]
            self.model.loss(self.targets[0], self.scale)
            total += float(self.losses[0].copy_to_host().sum(dtype=np.float64))
            count += int((targets >= 0).sum())
        return total / count

    # --- All of them -------------------------------------------------------------------------------------------------

    def run(self, until: int | None = None) -> Iterator[Progress]:
        """Train to the end, or to step `until`; report after each step."""
        train, begin, first = self.settings.train, time.perf_counter(), self.step
        last = min(train.steps, train.steps if until is None else until)
        per_step = train.accumulation * train.batch * train.length
        while self.step < last:
            loss = self.one_step()
            held_out = None
            if self.step % train.held_out_every == 0 or self.step == train.steps:
                held_out = self.held_out()
            self.log.append({"step": self.step, "loss": loss} | ({} if held_out is None else {"held_out": held_out}))
            per_second = (self.step - first) / (time.perf_counter() - begin)
            yield Progress(self.step, train.steps, loss, held_out, float(train.rates()[self.step - 1]),
                           per_second * per_step, self.share_of_peak(per_second * per_step),
                           (last - self.step) / per_second)

    def share_of_peak(self, tokens_per_second: float) -> float | None:
        """Count 6 flops for a parameter and a token, and 6 * S * H * D a layer for attention, half of it masked."""
        sheet = gpus.target() if device.on_gpu() else None
        peak = getattr(sheet, "fp32_tflops" if self.settings.train.dtype == "float32" else "f16_tflops", None)
        if not peak:
            return None
        shape, length = self.model.shape, self.settings.train.length
        flops = 6 * self.settings.model.parameters + 6 * shape.layers * length * shape.heads * shape.dim
        return tokens_per_second * flops / (peak * 1e12)


def mean_over_processes(gradients) -> None:
    """An all_reduce for torch.distributed, by way of the host: the backend "gloo" of an initialised process group."""
    import torch
    import torch.distributed as distributed

    values = torch.from_numpy(gradients.copy_to_host())
    distributed.all_reduce(values)
    gradients.copy_to_device((values / distributed.get_world_size()).numpy())
