"""Kernels of the exercises in the model: each has its place, and a wrong one is found at the step that it breaks."""

import functools
import shutil
from dataclasses import replace

import nbformat
import numpy as np
import pytest

from labkit import cuda
from labkit._common.errors import UserError
from labkit.course import copies, exercises, yours
from labkit.course import registry as course
from labkit.course import workbooks as workbook
from labkit.course.yours import PARTS, PLACES, block_parity, one_by_one, with_kernels
from labkit.course.yours.launchers import llama_kernels
from labkit.course.yours.places import ENCODER, LLAMA, TRAINING
from labkit.course.yours.places import GPT2 as GPT2_PLACE
from labkit.course.yours.steps import _step
from labkit.engine import LLM, SamplingParams
from labkit.engine.model_runner import ModelRunner
from labkit.kernels.attention.sentences import attention_sentences_reference
from labkit.kernels.embedding_sum import embedding_layernorm_reference
from labkit.kernels.linear.fused import fused_reference
from labkit.kernels.norm.layernorm import layernorm_reference
from labkit.kernels.pooling import mean_pool_normalized_reference, mean_pool_reference
from labkit.models import qwen3
from labkit.models.configs import Qwen3Config, shapes
from labkit.models.gpt2 import GPT2, Config, Decoder, Workspace
from labkit.models.gpt2_block import FUSED, Kernels, Shape, separately
from labkit.models.gpt2_reference import parity
from labkit.models.llama import Llama, SingleSequence

pytestmark = pytest.mark.sweep(every=True)  # what they compile takes ten seconds and more

SMALL = Shape(width=24, heads=3, inner=40)
HEADS_OF_64 = Shape(width=64, heads=1, inner=40)
TINY = Config(vocab_size=23, n_positions=16, n_embd=24, n_layer=2, n_head=3)
IDS = [3, 1, 4, 1, 5, 9, 2]
OUTSIDE = ("embedding", "append_to_cache", "logits", "argmax")  # of a block without a cache
IN_A_BLOCK = [place for place in PLACES if place.model == GPT2_PLACE and place.part not in OUTSIDE]
IN_AN_ENCODER = [place for place in PLACES if place.model == ENCODER]
IN_A_LLAMA = [place for place in PLACES if place.model == LLAMA]
PROMPTS = [[3, 1, 4, 1, 5], [9], [2, 6]]
SENTENCES = [[3, 1, 4, 1, 5], [], [9, 2], [6]]


@pytest.fixture(scope="module")
def solutions():
    return yours.answers(solutions=True)


def random_tensors():
    rng = np.random.default_rng(0)
    return {name: rng.standard_normal(shape).astype(np.float32) / np.float32(np.sqrt(shape[0]))
            for name, shape in shapes(TINY).items()}


@pytest.fixture(scope="module")
def model():
    return GPT2(TINY, random_tensors())


@pytest.fixture(scope="module")
def encoder():
    return yours.small_encoder()


def on_host(reference):
    """A launcher that computes with NumPy and compiles nothing. The last array that it is given is the output."""
    def launch(*arguments, stream=0, parts=None, **options):
        *given, out = arguments
        host = [one.copy_to_host() if hasattr(one, "copy_to_host") else one for one in given]
        out.copy_to_device(np.ascontiguousarray(reference(*host, **options), out.dtype))

    return launch


@pytest.fixture(scope="module")
def encoder_in_numpy(encoder):
    """The same encoder, of which nothing but learners' kernels takes a compiler's time."""
    return encoder.with_kernels(replace(
        encoder.kernels, linear=on_host(fused_reference), attention=on_host(attention_sentences_reference),
        add_layernorm=on_host(lambda x, residual, *rest, **named: layernorm_reference(x + residual, *rest, **named)),
        embed=on_host(embedding_layernorm_reference), pool=on_host(mean_pool_reference),
        pool_normalized=on_host(mean_pool_normalized_reference)))


@pytest.fixture(scope="module")
def llama():
    return yours.small_llama()


@pytest.fixture
def classroom(tmp_path, monkeypatch):
    """What a learner has at the beginning, to work in."""
    root = course.load().root
    shutil.copy(root / "course.toml", tmp_path)
    monkeypatch.setenv("LABKIT_COURSE", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    copy = course.load()
    for chapter in workbook.with_exercises(copy, copy.chapters):
        workbook.build(copy, chapter)
    return copy


def write(classroom, exercise, source, above=None):
    """As if a learner had written this into the answer's cell."""
    path = classroom.exercise(exercise).chapter.workbook
    notebook = nbformat.read(path, 4)
    cell = next(cell for cell in notebook.cells
                if cell.metadata.get("labkit") == {"exercise": exercise, "role": "answer"})
    cell.source = source
    if above is not None:
        notebook.cells.insert(notebook.cells.index(cell), nbformat.v4.new_code_cell(above))
    nbformat.write(notebook, path)


# --- Every answer in its place ---------------------------------------------------------------------------------------


@pytest.mark.sweep
def test_each_answer_alone_and_all_together_in_a_block(solutions):
    found = one_by_one(solutions, shape=HEADS_OF_64, tokens=5)
    assert found.passed and len(found.runs) == len(IN_A_BLOCK) + 1
    assert all(steps.first is None for _, _, steps in found.runs)
    assert "none" in str(found)


@pytest.mark.sweep
def test_each_answer_alone_and_all_together_in_a_model(solutions, model):
    found = one_by_one(solutions, model, IDS)
    assert found.passed
    assert [name for name, _, _ in found.runs] == [
        *(place.exercise for place in PLACES if place.model == GPT2_PLACE and place.part not in ("argmax", "one_head")),
        "all together"]
    assert "attend_warp is left out: it is for heads of 64 numbers, and here a head has 8." in found.table()["notes"]


@pytest.mark.sweep
@pytest.mark.parametrize("which", ["encoder_in_numpy", "encoder"])
def test_each_answer_alone_and_all_together_in_an_encoder(solutions, which, request):
    encoder = request.getfixturevalue(which)
    found = one_by_one(solutions, encoder, SENTENCES)
    assert found.passed
    assert [name for name, _, _ in found.runs] == [*(place.exercise for place in IN_AN_ENCODER), "all together"]
    notes = found.table()["notes"]
    assert any(note.startswith("saxpy, add_row") and note.endswith("have their places in a GPT-2.") for note in notes)
    names = [row.name for row in found.runs[0][2].rows]
    assert names[0] == "embedding" and names[-2:] == ["mean", "pooled"]
    assert yours.model_parity(encoder, SENTENCES).by == {}
    assert found.runs[-1][2].by == {
        "embedding": "embed_norm", "mean": "mean_pool", "pooled": "mean_pool", "attended": "attend_packed",
        "attention.normed": "add_norm", "out": "add_norm"}
    computed = {row[0]: row[1] for row in found.runs[-1][2].table()["rows"]}
    assert computed["layer.0.attended"] == "attend_packed" and computed["layer.1.out"] == "add_norm"
    assert computed["layer.1.gelu"] == "the model's own"


@pytest.mark.sweep
def test_each_answer_alone_and_all_together_in_a_llama(solutions, llama):
    found = one_by_one(solutions, llama, PROMPTS)
    assert found.passed
    assert [name for name, _, _ in found.runs] == [*(place.exercise for place in IN_A_LLAMA), "all together"]
    notes = found.table()["notes"]
    assert any(note.startswith("saxpy, add_row") and note.endswith("have their places in a GPT-2.") for note in notes)
    assert any(note.startswith("embed_norm, mean_pool") and note.endswith("in a sentence encoder.") for note in notes)
    computed = {row[0]: row[1] for row in found.runs[-1][2].table()["rows"]}
    assert computed["layers.0.input_norm"] == computed["layers.1.post_norm"] == computed["norm"] == "rmsnorm_block"
    assert computed["layers.0.q"] == computed["layers.1.keys"] == "rope_heads"
    assert computed["layers.1.values"] == computed["logits"] == "the model's own"


def test_a_llama_with_kernels_writes_the_same(solutions, llama):
    other = with_kernels(llama, solutions)
    assert other.weights is llama.weights and other.kernels.rmsnorm is not llama.kernels.rmsnorm
    assert other.kernels.linear is llama.kernels.linear
    for ids in ([3, 1, 4], [1], [5]):
        pair = [alone(ids).copy_to_host() for alone in (alones(llama), alones(other))]
        np.testing.assert_allclose(*pair, atol=1e-4)


@functools.cache
def alones(model):
    return SingleSequence(model, context=16)


@pytest.mark.sweep
def test_the_engine_runs_a_llama_with_kernels(solutions, llama):
    tokens = []
    for model in (llama, with_kernels(llama, solutions)):
        engine = LLM(ModelRunner(model, num_pages=8, max_num_seqs=2, max_num_batched_tokens=8))
        params = SamplingParams(temperature=0, max_tokens=6)
        tokens.append([output.outputs[0].token_ids for output in engine.generate([[3, 1, 4, 1, 5], [9, 2]], params)])
    assert tokens[0] == tokens[1]


def test_a_llamas_part_without_an_exercise_and_another_number_format(solutions, llama):
    def attention(q, keys, values, page_table, lengths, scale, out, stream=0):
        calls.append((q.shape, float(scale)))
        llama.kernels.paged_decode(q, keys, values, page_table, lengths, out, scale, None, stream=stream)

    calls = []
    steps = yours.model_parity(llama, PROMPTS, llama_kernels({"paged_attention": attention}, llama.kernels))
    assert steps.passed and calls[-1] == ((3, 4, 32), pytest.approx(32**-0.5))
    half = Llama(llama.config, llama.tensors, "bfloat16")
    with pytest.raises(UserError, match="compute in float32, and this model in bfloat16"):
        with_kernels(half, solutions)


@pytest.mark.sweep
def test_the_rotation_of_a_qwen3_stays_its_own(solutions):
    config = Qwen3Config(vocab_size=23, hidden_size=32, intermediate_size=40, num_hidden_layers=1,
                          num_attention_heads=2, num_key_value_heads=1, head_dim=32, tie_word_embeddings=True)
    rng = np.random.default_rng(0)
    tensors = {name: (("norm" in name) + rng.standard_normal(shape) / 6).astype(np.float32)
               for name, shape in shapes(config).items()}
    assert yours.model_parity(qwen3.Qwen3(config, tensors, "float32"), PROMPTS, solutions).check()


@pytest.mark.sweep
def test_an_encoder_with_kernels_has_the_same_embeddings(solutions, encoder):
    other = with_kernels(encoder, solutions)
    assert other is not encoder and other.kernels.pool is not encoder.kernels.pool
    assert other.kernels.linear is encoder.kernels.linear
    for normalize in (True, False):
        for _ in range(2):  # the second from a graph
            np.testing.assert_allclose(other.embed(SENTENCES, normalize=normalize),
                                       encoder.embed(SENTENCES, normalize=normalize), atol=1e-5)


def test_an_encoders_kernels_have_no_place_in_a_block(solutions):
    found = one_by_one(solutions.only("mean_pool", "saxpy"), shape=SMALL)
    assert [name for name, _, _ in found.runs] == ["saxpy"]
    assert "mean_pool has its place in a sentence encoder." in found.table()["notes"]


@pytest.mark.sweep
def test_text_is_the_same(solutions, model):
    other = with_kernels(model, solutions)
    assert other is not model and model.kernels.layernorm is not other.kernels.layernorm
    for each in (model, other):
        ws = Workspace(TINY)
        np.testing.assert_allclose(each.prefill(IDS, ws).copy_to_host(), model.prefill(IDS, Workspace(TINY))
                                   .copy_to_host(), atol=1e-4)
    tokens = []
    for each in (model, other):
        ws = Workspace(TINY)
        token = int(each.prefill(IDS, ws).copy_to_host().argmax())
        decoder, found = Decoder(each, ws), [token]
        for _ in range(5):
            found.append(int(decoder(found[-1]).copy_to_host().argmax()))
        tokens.append(found)
    assert tokens[0] == tokens[1]


@pytest.mark.sampled(0, sweep=8, quick="options0-shape1")
@pytest.mark.parametrize("shape", [SMALL, HEADS_OF_64])
@pytest.mark.parametrize("options", [{"causal": False}, {"post_ln": True}, {"tokens": 1}, {"tokens": 70}])
def test_other_blocks(solutions, options, shape):
    assert block_parity(solutions, shape=shape, **options).check()


def test_a_kernel_for_heads_of_another_size_is_not_used(solutions):
    mine = solutions.only("attend_warp")
    assert block_parity(mine, shape=SMALL).by == {}
    assert block_parity(mine, shape=HEADS_OF_64).by == {"attn": "attend_warp"}
    assert with_kernels(GPT2(TINY, random_tensors()), mine).kernels == yours.kernels({})
    both = solutions.only("largest_seen", "attend_warp")
    assert block_parity(both, shape=SMALL).by == {"attn": "largest_seen"}
    assert block_parity(both, shape=HEADS_OF_64).by == {"attn": "attend_warp"}


def test_a_step_names_the_kernels_in_it(solutions):
    steps = block_parity(solutions.only("layernorm_two_sums", "saxpy"), shape=SMALL)
    assert steps.by == {"ln_1": "layernorm_two_sums", "ln_2": "layernorm_two_sums", "ln_f": "layernorm_two_sums",
                        "attn.added": "saxpy", "out": "saxpy"}
    assert "saxpy" in str(steps)


# --- A wrong kernel --------------------------------------------------------------------------------------------------


@pytest.mark.sampled(0, sweep=4)
@pytest.mark.cpu_device  # on a GPU a mistake may wait for ever
@pytest.mark.parametrize("place", [place for place in PLACES if place.model != TRAINING],
                         ids=lambda place: place.exercise)
def test_a_known_mistake_is_found_at_its_step(place, model, encoder, llama):
    """Each wrong answer of the exercise, put in unchecked. Those that show at these sizes show at the part's steps."""
    if place.part == "argmax":
        pytest.skip("computes no activation")
    places, caught = PARTS[place.part][1], 0
    for mistake, kernel in exercises.find(place.exercise).wrong.items():
        mine = yours.answers(checked=False, **{place.exercise: kernel})
        if place.model == ENCODER:
            steps = yours.model_parity(encoder, SENTENCES, mine)
        elif place.model == LLAMA:
            steps = yours.model_parity(llama, PROMPTS, mine)
        elif place.part in OUTSIDE:
            steps = yours.model_parity(model, IDS, mine)
        else:
            steps = block_parity(mine, shape=HEADS_OF_64, tokens=9)
        if not steps.passed and not steps.stopped:
            assert _step(steps.first.name) in places, mistake
            assert f"The first that differs is {steps.first.name}" in str(steps)
            caught += 1
    assert caught >= 1


def test_the_right_step_of_the_right_layer(solutions, model):
    calls = []
    right = solutions.only("layernorm_two_sums").parts["layernorm"]

    def forgets_the_bias_in_the_fourth(x, weight, bias, out, stream=0):
        calls.append(0)
        right(x, weight, cuda.to_device(np.ones(bias.shape, np.float32)) if len(calls) == 4 else bias, out)

    steps = yours.model_parity(model, IDS, yours.kernels({"layernorm": forgets_the_bias_in_the_fourth}))
    assert steps.first.name == "h.1.ln_2"


@cuda.jit
def too_far(x, weight, bias, out):
    out[x.shape[0], 0] = weight[0]


@cuda.jit
def does_not_compile(x, weight, bias, out):
    out[0, 0] = weight.mean_of_nothing


@pytest.mark.parametrize("kernel", [
    pytest.param(too_far, marks=pytest.mark.cpu_device),  # a GPU checks no index: there it writes beside the array
    does_not_compile,
], ids=["out of bounds", "does not compile"])
def test_a_kernel_that_fails_is_reported(kernel):
    steps = block_parity(yours.answers(checked=False, layernorm_two_sums=kernel), shape=SMALL)
    assert not steps.passed and steps.first.name == "ln_1"
    assert "ln_1 could not be computed" in str(steps)
    found = one_by_one(yours.answers(checked=False, layernorm_two_sums=kernel), shape=SMALL)
    assert found.first("layernorm_two_sums").name == "ln_1" and "could not be computed" in str(found)


# --- What stands in the notebooks ------------------------------------------------------------------------------------


def test_what_was_not_begun_is_reported_as_not_done(classroom):
    mine = yours.answers()
    assert mine.usable == () and {row.state for row in mine.rows} == {yours.TO_DO}
    assert "Not done yet: saxpy, add_row" in str(mine)
    assert one_by_one(mine).runs == ()
    assert "none yet" in str(one_by_one(mine))
    assert mine.kernels() == yours.kernels({})
    assert block_parity(mine, shape=SMALL).passed


def test_a_learners_answer_is_read_checked_and_used(classroom):
    write(classroom, "saxpy", "@cuda.jit\ndef saxpy(s, x, y):\n    i = first_of(TWICE)\n    while i < y.size:\n"
                              "        y[i] += s * x[i]\n        i += cuda.gridsize(1)\n",
          above="print('not needed')\nTWICE = 2\nraise_an_error = 1 / 0\n\n@cuda.jit(device=True)\n"
                "def first_of(twice):\n    return cuda.grid(1) * (twice // TWICE)\n")
    write(classroom, "add_row", "@cuda.jit\ndef add_row(a, v, out):\n    col, row = cuda.grid(2)\n"
                                "    if row < out.shape[0] and col < out.shape[1]:\n"
                                "        out[row, col] = a[row, col] + v[row]\n")
    write(classroom, "matmul_bt", "@cuda.jit\ndef matmul_bt(a, b, out)\n    pass")
    states = {row.exercise: row for row in yours.answers("saxpy", "add_row", "matmul_bt", "largest_seen").rows}
    assert states["saxpy"].usable
    assert states["add_row"].state == yours.WRONG and "not right yet" in states["add_row"].message
    assert states["matmul_bt"].state == yours.BROKEN and "SyntaxError" in states["matmul_bt"].message
    assert states["largest_seen"].state == yours.TO_DO
    mine = yours.answers("saxpy", "add_row")
    assert [name for name, _, _ in one_by_one(mine, shape=SMALL).runs] == ["saxpy"]
    assert one_by_one(mine, shape=SMALL).passed and "add_row (work/exercises/05" in str(one_by_one(mine, shape=SMALL))
    unchecked = yours.answers("add_row", checked=False)
    assert one_by_one(unchecked, shape=SMALL).first("add_row").name == "attn.c_attn"


def test_a_notebook_that_is_damaged_or_gone_or_a_cell_that_was_deleted(classroom):
    chapter = classroom.exercise("saxpy").chapter
    notebook = copies.learners(classroom, chapter)
    notebook.cells = [cell for cell in notebook.cells if cell.metadata.get("labkit", {}).get("exercise") != "saxpy"]
    nbformat.write(notebook, chapter.workbook)
    assert "labkit reset saxpy puts it back" in yours.answers("saxpy").rows[0].message
    chapter.workbook.write_text("{")
    assert "cannot be read: labkit reset" in yours.answers("saxpy").rows[0].message
    chapter.workbook.unlink()
    assert yours.answers("saxpy").rows[0].state == yours.TO_DO


def test_wrong_names():
    with pytest.raises(ValueError, match="'count_down' has no place in the model; these have: saxpy"):
        yours.answers("count_down")
    with pytest.raises(ValueError, match="'tanh' is no part of the model"):
        yours.kernels({"tanh": None})


# --- The module itself -----------------------------------------------------------------------------------------------


def test_nothing_replaced_is_the_models_own():
    assert yours.kernels({}).linear is FUSED.linear
    calls = []

    def mine(x, out, stream=0):
        calls.append(x.shape)
        separately_gelu(x, out, stream=stream)

    from labkit.kernels.gelu import gelu_per_thread as separately_gelu

    assert block_parity(yours.kernels({"gelu": mine}), shape=SMALL, tokens=5).passed
    assert calls == [(5, 40)]  # once, and only where there is a GELU
    assert block_parity(Kernels(linear=separately()), shape=SMALL).passed


def test_places_name_exercises_and_parts():
    listed = {entry.name for entry in course.load().exercises}
    for place in PLACES:
        assert place.exercise in listed and place.part in PARTS
    assert len({place.exercise for place in PLACES}) == len(PLACES)


def test_parity_is_the_models(solutions, model):
    assert [row.name for row in yours.model_parity(model, IDS).rows] == [row.name for row in parity(model, IDS).rows]
