"""The gradients of whole models agree with finite differences in float64."""

import contextlib
import dataclasses

import numpy as np
import pytest

from labkit import cuda
from labkit.course import exercises, yours
from labkit.course.yours import places
from labkit.simt.errors import OutOfBoundsError
from labkit.train.model import Kernels, Model, Shape, activation_bytes, buffers
from labkit.train.parameters import Buffer, initial, layout
from labkit.train.trainer import Trainer
from tests.train.tiny import MODELS, loss64, settings_of, texts_of

pytestmark = pytest.mark.sweep(every=True)  # what they compile takes ten seconds and more

H = 1e-5  # a step of the finite difference


def file_tensors(buffer, flat) -> dict:
    """The flat array under labkit's names, in the shapes of the files."""
    result = {}
    for tensor in buffer.layout:
        values, begin = flat[tensor.offset : tensor.offset + tensor.size].reshape(tensor.shape), 0
        for name, shape in tensor.parts.items():
            result[name] = values.T if tensor.transposed else values[begin : begin + shape[0]]
            begin += shape[0]
    return result


def largest_difference(kind: str, kernels: Kernels | None = None) -> float:
    """Of an element of the gradient from its finite difference, over what is allowed; the loss is compared, too."""
    settings = settings_of(kind)
    config, draw = settings.model, np.random.default_rng(1)
    flat = initial(config, 0) + draw.normal(0, 0.1, len(initial(config, 0))).astype(np.float32)
    buffer = Buffer(config, "float32")
    buffer.load(flat)
    model = Model(config, buffer, batch=2, length=16, dtype="float32", kernels=kernels)
    ids, targets = (draw.integers(0, 64, (2, 16)).astype(np.int32) for _ in range(2))
    scale = cuda.to_device(np.array([1 / 32], np.float32))
    for accumulate in (False, True):  # twice the same tokens: twice the gradient
        model.forward(cuda.to_device(ids.reshape(-1)))
        model.backward(cuda.to_device(ids.reshape(-1)), cuda.to_device(targets.reshape(-1)), scale, accumulate)

    exact = flat.astype(np.float64)
    loss = loss64(config, file_tensors(buffer, exact), ids, targets)
    differences = [abs(model.losses.copy_to_host().mean() - loss) / 1e-5]
    gradient = buffer.gradient.copy_to_host() / 2
    for tensor in layout(config):
        part = gradient[tensor.offset : tensor.offset + tensor.size]
        biggest = int(np.abs(part).argmax())
        for index in {biggest, *draw.integers(0, tensor.size, 3).tolist()}:
            losses = []
            for move in (H, -H):
                moved = exact.copy()
                moved[tensor.offset + index] += move
                losses.append(loss64(config, file_tensors(buffer, moved), ids, targets))
            expected = (losses[0] - losses[1]) / (2 * H)
            differences.append(abs(part[index] - expected) / (1e-4 * abs(part[biggest]) + 1e-7))
    return float(np.max(differences))  # NaN if one is


@pytest.mark.parametrize("kind", MODELS)
def test_gradients_agree_with_finite_differences(kind):
    assert largest_difference(kind) < 1


@pytest.mark.sweep
@pytest.mark.parametrize(("kind", "place"), [("gpt2", places.GPT2), ("llama", places.LLAMA),
                                             ("tied llama", places.LLAMA)])
def test_gradients_by_the_kernels_of_exercises(kind, place):
    kernels = yours.answers(*places.in_training_of(place), solutions=True).training_kernels()
    replaced = [field.name for field in dataclasses.fields(Kernels)
                if getattr(kernels, field.name) is not getattr(Kernels, field.name)]
    assert len(replaced) == 7  # the exercises' six, and linear_residual of linear and add
    assert largest_difference(kind, kernels) < 1


@pytest.mark.sweep
@pytest.mark.cpu_device  # on a GPU a mistake may wait for ever
@pytest.mark.parametrize("exercise", places.in_model(places.TRAINING))
def test_a_known_mistake_of_an_exercise_shows_in_the_gradients(exercise):
    caught = 0
    for kernel in exercises.find(exercise).wrong.values():
        mine = yours.answers(checked=False, **{exercise: kernel})
        with contextlib.suppress(OutOfBoundsError):
            caught += not largest_difference("gpt2", mine.training_kernels()) < 1
    assert caught >= 4


def test_every_launch_of_both_passes_can_be_replaced():
    launched = set()

    def counted(name, launch):
        def call(*arguments, **options):
            launched.add(name)
            launch(*arguments, **options)

        return call

    names = [field.name for field in dataclasses.fields(Kernels)]
    kernels = Kernels(**{name: counted(name, getattr(Kernels, name)) for name in names})
    for kind in ("gpt2", "llama"):
        settings = settings_of(kind)
        Trainer(settings, texts_of(settings), kernels=kernels).one_step()
    assert launched == set(names)


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_memory_is_computed_as_it_is_allocated(kind):
    config = settings_of(kind).model
    kept, shared = buffers(Shape(config), 32)
    model = Model(config, Buffer(config, "bfloat16"), batch=2, length=16, dtype="bfloat16")
    used = [array for group in (*model.layers, model.shared) for array in vars(group).values()]
    assert len(used) == 2 * len(kept) + len(shared)
    assert sum(array.nbytes for array in used) == activation_bytes(config, 32, "bfloat16")
