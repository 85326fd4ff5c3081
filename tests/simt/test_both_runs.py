"""A kernel compiled and the same kernel observed: one result, one fault, and never a raw exception of Python.

Each section is a kind of code; `both` runs it twice and compares.
"""

import numpy as np
import pytest
from numba import float32

from labkit import cuda
from labkit.simt import observe
from labkit.simt.errors import DeviceFault, KernelError, OutOfBoundsError

pytestmark = pytest.mark.cpu_device


def both(launch, *args):
    """The arrays among the arguments as a launch leaves them, and as an observation does: they must be equal."""
    compiled, observed = ([np.array(a) if isinstance(a, np.ndarray) else a for a in args] for _ in range(2))
    launch(*compiled)
    report = observe(launch, *observed)
    assert report.ok, report.findings
    for one, other in zip(compiled, observed, strict=True):
        if isinstance(one, np.ndarray):
            np.testing.assert_array_equal(other, one)
    return compiled


def result(launch, *args):
    """The last array, from both runs."""
    return both(launch, *args)[-1]


def faults(kind, launch, *args):
    """The error of a launch that names kernel, line and thread; an observation finds the same, or raises it too."""
    with pytest.raises(kind) as caught:
        launch(*[np.array(a) if isinstance(a, np.ndarray) else a for a in args])
    error = caught.value
    assert isinstance(error, DeviceFault) and f"{error.kernel}, line {error.line}: " in str(error)
    try:
        report = observe(launch, *args)
    except KernelError as other:
        assert type(other) is type(error) and other.line == error.line
    else:
        assert [f.lines for f in report.findings] == [[error.line]]
    return error


def ramp(rows, columns):
    return np.arange(rows * columns, dtype=np.float32).reshape(rows, columns)


def out(n):
    return np.zeros(n, np.float32)


# ---------------------------------------------------------------- views


@cuda.jit
def read_a_row(x, y):
    i = cuda.grid(1)
    row = x[i]
    y[i] = row[1]


@cuda.jit
def read_a_slice(x, y):
    i = cuda.grid(1)
    row = x[i, :]
    y[i] = row[1]


@cuda.jit
def read_after_an_ellipsis(x, y):
    i = cuda.grid(1)
    column = x[..., i]
    y[i] = column[1]


@cuda.jit
def read_a_shared_row(x, y):
    tile = cuda.shared.array((3, 4), float32)
    i = cuda.grid(1)
    for j in range(4):
        tile[i % 3, j] = x[0, j]
    cuda.syncwarp()
    row = tile[i]
    y[i] = row[1]


@cuda.jit
def read_a_local_row(x, y):
    own = cuda.local.array((3, 4), float32)
    i = cuda.grid(1)
    for j in range(3):
        own[j, 1] = x[0, 1]
    row = own[i]
    y[i] = row[1]


@cuda.jit
def iterate_over_a_row(x, y):
    i = cuda.grid(1)
    for value in x[i]:
        y[i] += value


@cuda.jit
def write_through_a_row(x, y):
    i = cuda.grid(1)
    row = x[i]
    row[0] = row[1]


@cuda.jit
def write_a_whole_row(x, y):
    i = cuda.grid(1)
    x[i] = float32(7)


@cuda.jit
def write_a_slice(x, y):
    i = cuda.grid(1)
    x[i, 1:3] = float32(7)


@cuda.jit
def write_after_an_ellipsis(x, y):
    i = cuda.grid(1)
    x[..., i] = float32(7)


@cuda.jit
def update_a_row(x, y):
    i = cuda.grid(1)
    cuda.atomic.add(x[i], 1, float32(2))


@cuda.jit
def sum_a_row(x, y):
    i = cuda.grid(1)
    y[i] = x[i].sum()


@cuda.jit
def fill_a_row(x, y):
    i = cuda.grid(1)
    x[i].fill(float32(3))


@cuda.jit
def attributes_of_a_row(x, y):
    i = cuda.grid(1)
    row = x[i]
    y[i] = row.size + len(row) + row.ndim + row.shape[0] + row.strides[0] + row.nbytes + row.itemsize


VIEWS = [read_a_row, read_a_slice, read_after_an_ellipsis, read_a_local_row, iterate_over_a_row, write_through_a_row,
         write_a_whole_row, write_a_slice, write_after_an_ellipsis, update_a_row, sum_a_row, fill_a_row]  # fmt: skip


@pytest.mark.parametrize("kernel", [*VIEWS, attributes_of_a_row], ids=lambda k: k.__name__)
def test_a_view_is_the_same_in_both_runs(kernel):
    both(kernel[1, 3], ramp(3, 4), out(3))


@pytest.mark.parametrize("kernel", VIEWS, ids=lambda k: k.__name__)
def test_a_view_past_the_end_is_one_fault(kernel):
    past = 4 if "ellipsis" in kernel.__name__ else 3
    error = faults(OutOfBoundsError, kernel[1, past + 1], ramp(3, 4), out(5))
    assert (error.index, error.thread, error.shape) == ((past,), (past, 0, 0), (3, 4))


def test_a_shared_row_past_the_end_is_one_fault():
    report = observe(read_a_shared_row[1, 4], ramp(3, 4), out(4))
    assert [f.index for f in report.out_of_bounds] == [(3,)]


def test_what_is_written_through_a_view_that_does_not_exist_goes_nowhere():
    x = ramp(3, 4)
    report = observe(write_through_a_row[1, 4], x, out(4))
    assert not report.races and x[:, 0].tolist() == [1, 5, 9]


def test_a_finding_names_the_row_through_which_an_element_was_used():
    @cuda.jit
    def past_the_row(x, y):
        row = x[2, 1:]
        y[0] = row[3]

    report = observe(past_the_row[1, 1], ramp(3, 4), out(1))
    assert "x[2, 1:][3], outside its shape (3,)" in str(report.findings[0])


# ---------------------------------------------------------------- a negative index


@cuda.jit
def left_neighbour(x, y):
    i = cuda.grid(1)
    y[i] = x[i - 1]


@cuda.jit
def the_last_element(x, y):
    i = cuda.grid(1)
    y[i] = x[-1]


def test_an_index_that_wraps_is_a_warning_and_no_error():
    report = observe(left_neighbour[1, 4], np.arange(4, dtype=np.float32), out(4))
    assert report.ok and not report.findings
    (warning,) = report.warnings
    assert (warning.kind, warning.threads, warning.index) == ("warning", [(0, 0, 0)], (-1,))
    assert f"line {warning.lines[0]}: thread 0 uses x[-1]" in str(warning)
    assert str(warning) in repr(report) and "Nothing wrong was seen" in repr(report)
    assert report.to_json()["warnings"][0]["index"] == (-1,)
    assert "warning" in report._repr_html_()


def test_a_minus_one_in_the_source_is_meant():
    assert not observe(the_last_element[1, 4], np.arange(4, dtype=np.float32), out(4)).warnings
