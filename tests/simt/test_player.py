"""observe(...).play(): what a recording has of each step, both sides of each fault, and the page that holds it all."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numba import float32, int32

from labkit import cuda, observe
from labkit._common import files
from labkit.simt.observer import player, recorder
from labkit.simt.observer.race_orders import orders
from labkit.simt.observer.recorder import BARRIER, COLLECTIVE, MEMORY, STATEMENT, Recording
from labkit.simt.observer.report import Report
from labkit.simt.observer.trace import Stream, encoded
from tests.simt.helpers import lines_of

pytestmark = pytest.mark.cpu_device


def counting(*shape):
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


def recorded(report, *blocks):
    return Recording(report.launch, blocks or (0,)).record()


def steps_of(report, block=0):
    return recorded(report, block).traces[block].steps


def lanes(mask):
    return [k for k in range(32) if mask >> k & 1]


# ---------------------------------------------------------------- steps


@cuda.jit
def guarded(x, out):
    i = cuda.grid(1)  # index
    if i < x.shape[0]:  # guard
        out[i] = 2 * x[i]  # store


def test_a_guard_masks_lanes_off():
    index, guard, store = lines_of(guarded, "index", "guard", "store")
    report = observe(guarded[2, 32], counting(40), np.zeros(40, np.float32))
    steps = steps_of(report, 1)
    assert [(s.kind, s.line, len(lanes(s.mask)), len(lanes(s.ended))) for s in steps] == [
        (STATEMENT, index, 32, 0), (STATEMENT, guard, 32, 24), (STATEMENT, store, 8, 8)]
    assert lanes(steps[1].ended) == list(range(8, 32))
    read, write = steps[2].requests
    assert (read.kind, read.array, read.lanes, read.elements) == ("load", "x", [*range(8)], [*range(32, 40)])
    assert (write.kind, write.array, write.elements) == ("store", "out", [*range(32, 40)])
    assert read.cost == write.cost == 1  # sectors
    assert steps[2].values == {"out": [(i, 2.0 * i) for i in range(32, 40)]}


@cuda.jit
def reversed_order(x, out):
    s = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    s[t] = x[t]
    cuda.syncthreads()  # barrier
    out[t] = s[63 - t]


def test_a_barrier_holds_every_warp_until_it_opens():
    (barrier,) = lines_of(reversed_order, "barrier")
    steps = steps_of(observe(reversed_order[1, 64], counting(64), np.zeros(64, np.float32)))
    reached = [k for k, s in enumerate(steps) if s.waits]
    assert [(steps[k].warp, steps[k].line, steps[k].waits, steps[k].name) for k in reached] == [
        (0, barrier, 0xFFFFFFFF, "cuda.syncthreads"), (1, barrier, 0xFFFFFFFF, "cuda.syncthreads")]
    assert steps[reached[-1] + 1].kind == BARRIER and steps[reached[-1] + 1].line == barrier
    assert [s.kind for s in steps].count(BARRIER) == 1


@cuda.jit
def diverging(out):
    t = cuda.threadIdx.x
    n = int32(0)
    while n < t:  # loop
        n += 1  # count
    if t % 2:
        out[t] = n  # odd
    else:
        out[t] = -n  # even
    out[t] += 100  # together


def test_lanes_that_diverge_meet_again():
    loop, count, odd, even, together = lines_of(diverging, "loop", "count", "odd", "even", "together")
    out = np.zeros(4, np.float32)
    steps = steps_of(observe(diverging[1, 4], out))
    assert [(s.line, lanes(s.mask)) for s in steps if s.line in (loop, count)] == [
        (loop, [0, 1, 2, 3]), (count, [1, 2, 3]), (loop, [1, 2, 3]), (count, [2, 3]), (loop, [2, 3]), (count, [3]),
        (loop, [3])]
    assert [(s.line, lanes(s.mask)) for s in steps if s.line in (odd, even, together)] == [
        (odd, [1, 3]), (even, [0, 2]), (together, [0, 1, 2, 3])]
    assert out.tolist() == [100, 101, 98, 103]


@cuda.jit
def shuffled(out):
    t = cuda.threadIdx.x
    other = cuda.shfl_down_sync(0xFFFFFFFF, t, 1)  # shuffle
    out[t] = other


def test_a_collective_is_a_step_of_its_warp():
    (shuffle,) = lines_of(shuffled, "shuffle")
    steps = steps_of(observe(shuffled[1, 64], np.zeros(64, np.float32)))
    found = [(s.warp, s.line, s.mask, s.name) for s in steps if s.kind == COLLECTIVE]
    assert found == [(w, shuffle, 0xFFFFFFFF, "cuda.shfl_down_sync") for w in (0, 1)]


@cuda.jit
def spins(flag, out):
    t = cuda.threadIdx.x
    if t == 1:
        while cuda.atomic.add(flag, 0, 0) == 0:
            pass
        out[0] = 7
    else:
        cuda.atomic.add(flag, 0, 1)


def test_lanes_left_behind_get_their_turn(monkeypatch):
    """The loop stands before the store that ends it: without turns it would never end."""
    monkeypatch.setattr(recorder, "ALONE", 20)
    report = observe(spins[1, 2], np.zeros(1, np.int32), np.zeros(1, np.int32))
    assert steps_of(report)[-1].ended


@cuda.jit
def tiled(a, b, c):
    ta = cuda.shared.array((16, 16), float32)
    tb = cuda.shared.array((16, 16), float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    col, row = cuda.grid(2)
    acc = float32(0.0)
    for t in range(a.shape[1] // 16):
        ta[y, x] = a[row, t * 16 + x]
        tb[y, x] = b[t * 16 + y, col]
        cuda.syncthreads()
        for k in range(16):
            acc += ta[y, k] * tb[k, x]
        cuda.syncthreads()
    c[row, col] = acc


@pytest.fixture(scope="module")
def product():
    """(the report, its arguments as they were) of a product of 32 x 32 x 32 in four blocks."""
    a, b = np.random.default_rng(0).random((2, 32, 32), np.float32)
    return observe(tiled[(2, 2), (16, 16)], a.copy(), b.copy(), np.zeros((32, 32), np.float32)), (a, b)


@pytest.fixture(scope="module")
def recording(product):
    return recorded(product[0], *range(4))


@pytest.fixture(scope="module")
def played(product, recording):
    return player.Player(encoded(recording, product[0]), product[0])


@pytest.mark.sweep(every=True)
def test_the_steps_lead_to_the_result_and_cost_what_observe_counts(product, recording):
    report, (a, b) = product
    assert recording.report.counts == report.counts and sorted(recording.traces) == [0, 1, 2, 3]
    out = np.zeros((32, 32), np.float32)
    sectors = conflicts = 0
    for trace in recording.traces.values():
        if "c" in trace.changed:  # what the blocks before have written
            elements, values = trace.changed["c"]
            assert np.array_equal(out.reshape(-1)[elements], np.array(values, np.float32))
        for step in trace.steps:
            for element, value in step.values.get("c", ()):
                out.reshape(-1)[element] = value
            spaces = [(recording.arrays[request.array].space, request.cost) for request in step.requests]
            sectors += sum(cost for space, cost in spaces if space == "global")
            conflicts += sum(cost for space, cost in spaces if space == "shared")
    assert np.allclose(out, a @ b, rtol=1e-5)
    assert (sectors, conflicts) == (report.counts["sectors"], report.counts["bank_conflicts"])


# ---------------------------------------------------------------- faults


@cuda.jit
def tree_without_barrier(x, out):
    s = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    s[t] = x[t]  # write
    if t < 32:
        s[t] += s[t + 32]  # read
    if t == 0:
        out[0] = s[0]


def sides_of(report, kind):
    recording = recorded(report)
    finding = getattr(recording.report, kind)[0]
    return finding, finding.sides, recording.traces[0].steps


def test_a_race_knows_both_sides():
    write, read = lines_of(tree_without_barrier, "write", "read")
    finding, sides, steps = sides_of(observe(tree_without_barrier[1, 64], counting(64), counting(1)), "races")
    assert finding.lines == [write, read]
    one, other = sorted(sides, key=lambda side: side.step)
    assert {(side.line, side.verb) for side in sides} == {(write, "writes"), (read, "reads")}
    assert one.thread % 32 + 32 in (one.thread, other.thread) and one.element == other.element == finding.index[0]
    for side in sides:
        step = steps[side.step]
        assert (step.line, step.warp) == (side.line, side.thread // 32) and step.mask >> side.thread % 32 & 1
        assert any(request.array == "s" and finding.index[0] in request.elements for request in step.requests)


@cuda.jit
def unguarded(x, out):
    i = cuda.grid(1)
    out[i] = 2 * x[i]  # access


def test_an_access_out_of_bounds_is_shown_where_it_would_be():
    (access,) = lines_of(unguarded, "access")
    report = observe(unguarded[1, 32], counting(30), np.zeros(32, np.float32))
    finding, (side,), steps = sides_of(report, "out_of_bounds")
    assert (side.thread, side.line, side.verb, side.array, side.index) == (30, access, "reads", "x", (30,))
    outside = [request.lanes for request in steps[side.step].requests if request.kind == "outside"]
    assert outside == [[30, 31]]
    assert steps[side.step].values["out"][29] == (29, 58.0)


@cuda.jit
def half_a_barrier(out):
    t = cuda.threadIdx.x
    if t < 16:
        cuda.syncthreads()  # barrier
    out[t] = t


def test_a_divergent_barrier_knows_who_waits_and_who_does_not():
    (barrier,) = lines_of(half_a_barrier, "barrier")
    _, sides, _ = sides_of(observe(half_a_barrier[1, 32], np.zeros(32, np.float32)), "divergent_barriers")
    assert [(side.thread, side.verb) for side in sides] == [(0, "waits in cuda.syncthreads()"), (16, "has ended")]
    assert sides[0].line == barrier


@cuda.jit
def reads_fresh(out):
    s = cuda.shared.array(32, float32)
    t = cuda.threadIdx.x
    s[t // 2] = t // 2
    cuda.syncwarp()
    out[t] = s[t]  # read


def test_a_read_of_fresh_memory_knows_its_element():
    (read,) = lines_of(reads_fresh, "read")
    _, (side,), steps = sides_of(observe(reads_fresh[1, 32], np.zeros(32, np.float32)), "uninitialized_reads")
    assert (side.thread, side.line, side.array, side.element) == (16, read, "s", 16)
    assert steps[side.step].line == read


# ---------------------------------------------------------------- what is run again


def test_the_launch_is_played_from_what_it_began_with():
    """Two arguments may be views of one array, and the caller may change it afterwards."""
    both = np.zeros((2, 40), np.float32)
    both[0] = counting(40)
    report = observe(guarded[2, 32], both[0], both[1])
    after = both.copy()
    both[...] = -1
    recording = recorded(report, 0, 1)
    values = dict(pair for trace in recording.traces.values() for s in trace.steps for pair in s.values.get("out", ()))
    assert values == {i: 2.0 * i for i in range(40)} and (both == -1).all()
    assert np.array_equal(after[1], 2 * counting(40))


@cuda.jit
def in_place(x, same):
    t = cuda.threadIdx.x
    x[t] = t + 1
    cuda.syncthreads()
    x[t] = same[t] + 1


def test_what_another_name_wrote_is_seen():
    x = np.zeros(4, np.float32)
    steps = steps_of(observe(in_place[1, 4], x, x))
    meanwhile = [s.values for s in steps if s.kind == MEMORY]
    assert meanwhile == [{"same": [(0, 1.0), (1, 2.0), (2, 3.0), (3, 4.0)]}]


def test_a_report_without_a_launch_says_so():
    with pytest.raises(ValueError, match="scale: this report has no launch to play"):
        Report("scale", "", (1, 1, 1), (1, 1, 1)).play()


def test_observe_itself_is_as_before():
    """Nothing is recorded, and no thread stops at a statement, until play is asked for."""
    report = observe(reversed_order[1, 64], counting(64), np.zeros(64, np.float32))
    assert report.launch.args[0].shape == (64,) and "launch" not in report.to_json()
    assert report.counts["barriers"] == 1 and report.ok


# ---------------------------------------------------------------- the player


def data_of(played):
    return json.loads(re.search(r'id="data">(.*?)</script>', played.document(), re.DOTALL)[1])


@pytest.mark.sweep(every=True)
def test_a_tiled_product_stays_small(played):
    """The element of a 16 x 16-tiled product of 32 x 32 x 32, with all four blocks."""
    assert len(played._repr_html_().encode()) < 200_000
    assert len(data_of(played)["blocks"]) == 4


@pytest.mark.sweep(every=True)
def test_the_element_is_one_frame_that_fetches_nothing(played):
    html = played._repr_html_()
    assert html.startswith("<iframe") and html.count("'") == 8  # of class, title, style and srcdoc
    page = re.sub(r'id="data">.*?</script>', "", played.document(), flags=re.DOTALL)
    assert not re.search(r"https?:|//[a-z]|\bsrc=|@import|url\(|fetch\(|XMLHttp", page)
    assert played._repr_mimebundle_()["text/plain"] == repr(played)
    assert repr(played).startswith("tiled, grid (2, 2, 1), block (16, 16, 1): 628 steps to play.")


@cuda.jit
def troublesome(out):
    out[0] = 1  # </script> & 'quotes' <!-- "and" \u2028


def test_no_source_breaks_the_page():
    played = observe(troublesome[1, 1], np.zeros(1, np.float32)).play()
    assert played.document().count("</script>") == 2 and played._repr_html_().count("'") == 8
    assert "</script> & 'quotes'" in data_of(played)["source"][-1][1]


@pytest.mark.sweep(every=True)
def test_save_writes_a_whole_file_or_none(tmp_path, played, monkeypatch):
    path = played.save(tmp_path / "deep" / "product.html")
    assert path.read_text(encoding="utf-8") == played.document()
    assert [p.name for p in path.parent.iterdir()] == ["product.html"]
    monkeypatch.setattr(player.os, "replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        played.save(path)
    assert [p.name for p in path.parent.iterdir()] == ["product.html"]
    with pytest.raises(ValueError, match=r"path is .*product\.txt'; it must end in \.html"):
        played.save(tmp_path / "product.txt")
    (tmp_path / "folder.html").mkdir()
    with pytest.raises(ValueError, match="which is a folder"):
        played.save(tmp_path / "folder.html")


@pytest.mark.sweep(every=True)
@pytest.mark.skipif(os.name == "nt", reason="Windows has no such locks")
def test_the_next_save_deletes_what_a_killed_one_left_and_nothing_else(tmp_path, played):
    code = ("import pathlib, sys, time; from labkit.simt.observer import player\n"
            "file = player._temporary(pathlib.Path(sys.argv[1])); print(file[1], flush=True); time.sleep(60)")
    killed, alive = (subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "race.html")], text=True,
                                      stdout=subprocess.PIPE) for _ in range(2))
    with killed, alive:
        left, held = Path(killed.stdout.readline().strip()), Path(alive.stdout.readline().strip())
        assert files.LEFT_OVER.fullmatch(left.name)
        killed.kill()
        killed.wait()
        played.save(tmp_path / "race.html")
        after = set(tmp_path.iterdir())
        alive.kill()
    assert after == {held, tmp_path / "race.html"}


def test_the_first_faulty_block_is_shown(played):
    report = observe(unguarded[3, 32], counting(70), np.zeros(96, np.float32))
    data = data_of(report.play())
    assert [block["label"] for block in data["blocks"]] == ["0", "1", "2"] and data["first"] == 2
    (finding,) = data["findings"]
    assert finding["title"] == "Out of bounds" and finding["sides"][0]["index"] == [70]
    assert data_of(report.play(block=1))["first"] == 1 and data_of(played)["first"] == 0
    assert data_of(report.play(block=(1, 0, 0)))["first"] == 1


@pytest.mark.parametrize("block, error, message", [
    (4, ValueError, r"block is 4, and the grid of this launch is \(2, 2, 1\): 4 blocks"),
    ((0, 2), ValueError, r"block is \(0, 2\)"),
    (-1, ValueError, "block is -1"),
    ("first", TypeError, r"block must be the number of a block, or its \(x, y, z\), not 'first'"),
    (True, TypeError, "not True"),
])  # fmt: skip
def test_a_block_that_is_not_there_is_named(product, block, error, message):
    with pytest.raises(error, match=message):
        product[0].play(block=block)


def test_what_is_too_large_says_so(monkeypatch):
    report = observe(guarded[20, 32], counting(640), np.zeros(640, np.float32))
    data = data_of(report.play(block=3))
    assert data["notes"] == ["Of the 20 blocks of this launch, block 3 is recorded."]
    assert [block["number"] for block in data["blocks"]] == [3]
    monkeypatch.setattr(recorder, "MOST_STEPS", 2)
    assert "Only the first 2 steps are recorded." in data_of(report.play())["notes"]
    monkeypatch.undo()
    large = np.zeros(5 << 20, np.float32)
    report = observe(guarded[1, 32], large, large[:32])
    with pytest.raises(ValueError, match="the arrays of this launch are 20,971,520 bytes, and play takes up to 16,777"):
        report.play()


def test_of_a_large_array_what_is_touched_is_shown():
    x, out = counting(200, 200), np.zeros((200, 200), np.float32)
    report = observe(corner[1, (8, 4)], x, out)
    arrays = {array["name"]: array for array in data_of(report.play())["arrays"]}
    assert arrays["x"]["window"] == [100, 104, 56, 72] and arrays["x"]["clipped"]
    assert data_of(report.play())["notes"] == ["Only a part of x and out is shown."]


@cuda.jit
def corner(x, out):
    col, row = cuda.grid(2)
    out[100 + row, 60 + col] = x[100 + row, 60 + col]


def test_numbers_survive_the_stream():
    stream = Stream()
    stream.unsigned(0, 127, 128, 2**32 - 1)
    assert bytes(stream.bytes) == b"\x00\x7f\x80\x01\xff\xff\xff\xff\x0f"
    runs = Stream()
    assert runs.runs([5, 6, 7, 8, 8, 4], 3) == 4
    # 3 -> 5; three times 1; once 0; once -4
    assert list(runs.bytes) == [4, 2, 3, 0, 1, 7, 1]


# ---------------------------------------------------------------- a race in both orders


@cuda.jit
def unsynchronised(x, out):
    s = cuda.shared.array(96, float32)
    t = cuda.threadIdx.x
    s[t] = x[t]  # write
    out[t] = s[95 - t]  # read


@cuda.jit
def wide_tree(x, out):
    s = cuda.shared.array(128, float32)
    t = cuda.threadIdx.x
    s[t] = x[t]
    cuda.syncthreads()
    half = 64
    while half > 0:
        if t < half:
            s[t] += s[t + half]  # add
        half //= 2
    if t == 0:
        out[0] = s[0]


@cuda.jit
def in_one_warp(x, out):
    s = cuda.shared.array(32, float32)
    t = cuda.threadIdx.x
    s[t] = x[t]
    out[t] = s[31 - t]


@pytest.mark.parametrize("kernel, threads", [(unsynchronised, 96), (wide_tree, 128)])
def test_a_race_is_played_in_the_bad_order_and_in_the_good_one(kernel, threads):
    x, out = counting(threads), np.zeros(threads if kernel is unsynchronised else 1, np.float32)
    report = observe(kernel[1, threads], x, out)
    bad, good = orders(recorded(report))
    assert [name.partition(":")[0] for name, *_ in (bad, good)] == ["Bad order", "Good order"]
    right = x[::-1] if kernel is unsynchronised else [x.sum()]
    np.testing.assert_array_equal(good[2].live["out"], right)
    differs = bad[2].live["out"] != right
    assert differs.any() and good[3] == {}
    marked = {element for arrays in bad[3].values() for element in arrays.get("out", ())}
    assert marked == set(np.flatnonzero(differs))
    first = int(np.flatnonzero(differs)[0])
    got, wanted = bad[2].live["out"][first], float(np.asarray(right)[first])
    shown = "NaN" if np.isnan(got) else f"{got:.6g}"
    assert f"out[{first}] becomes {shown}; it should be {wanted:.6g}." in bad[1]
    assert f"out[{first}] becomes {wanted:.6g}, as it should." in good[1]


def test_in_the_bad_order_one_warp_passes_before_another_comes():
    write, read = lines_of(unsynchronised, "write", "read")
    report = observe(unsynchronised[1, 96], counting(96), np.zeros(96, np.float32))
    (_, _, bad, _), (_, _, good, _) = orders(recorded(report))

    def order(recording):
        return [(step.warp, step.line) for step in recording.traces[0].steps if step.line in (write, read)]

    assert order(bad)[:2] == [(0, write), (0, read)]
    assert [line for _, line in order(good)] == [write] * 3 + [read] * 3
    for recording in (bad, good):
        race = next(each for each in recording.report.findings if each.kind == "race")
        assert {side.line for side in race.sides} == {write, read}


def test_the_page_has_both_orders_of_a_race_and_of_nothing_else():
    race = observe(wide_tree[1, 128], counting(128), np.zeros(1, np.float32)).play()
    assert [each["name"].partition(":")[0] for each in race.trace["orders"]] == ["Bad order", "Good order"]
    assert race.trace["wrong"] == {} and race.trace["orders"][0]["wrong"] and not race.trace["orders"][1]["wrong"]
    for kernel, threads in ((in_one_warp, 32), (reversed_order, 64)):
        calm = observe(kernel[1, threads], counting(threads), np.zeros(threads, np.float32)).play()
        assert calm.trace["orders"] == []
