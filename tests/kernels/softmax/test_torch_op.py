"""The operator of PyTorch: needs PyTorch and a GPU."""

import pytest

from labkit import device

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytestmark = pytest.mark.skipif(not (device.on_gpu() and torch.cuda.is_available()), reason="needs a GPU")


def expected(scores, hidden):
    return torch.softmax((0.125 * scores.double()).masked_fill(hidden, float("-inf")), -1)


def above_diagonal(size):
    return torch.triu(torch.ones(size, size, dtype=torch.bool, device="cuda"), 1)


@pytest.mark.parametrize("shape", [(2, 3, 65, 65), (4, 128, 128)])
def test_it_is_pytorchs_softmax_and_so_is_its_derivative(shape):
    from labkit.kernels.softmax.torch_op import masked_softmax

    scores = 8 * torch.randn(*shape, device="cuda")
    wide = scores.double().requires_grad_()
    scores.requires_grad_()
    hidden = above_diagonal(shape[-1])
    got, want = masked_softmax(scores, 0.125, True), expected(wide, hidden)
    torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-7)
    gradient = torch.randn_like(got)
    got.backward(gradient)
    want.backward(gradient.double())
    torch.testing.assert_close(scores.grad.double(), wide.grad, rtol=1e-4, atol=1e-6)


def test_it_runs_on_the_current_stream():
    from labkit.kernels.softmax.torch_op import masked_softmax

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        scores = torch.randn(4, 256, 256, device="cuda")
        for _ in range(50):
            scores = scores * 1.01  # the kernel would overtake these on another stream
        got = masked_softmax(scores, 0.125, True)
    stream.synchronize()
    torch.testing.assert_close(got.double(), expected(scores, above_diagonal(256)), rtol=1e-5, atol=1e-7)


def test_padding():
    from labkit.kernels.softmax.torch_op import masked_softmax

    scores = torch.randn(2, 3, 65, 65, device="cuda")
    lengths = torch.tensor([5, 65], dtype=torch.int32, device="cuda")
    hidden = torch.arange(65, device="cuda") >= lengths[:, None, None, None]
    torch.testing.assert_close(masked_softmax(scores, 0.125, False, lengths).double(), expected(scores, hidden),
                               rtol=1e-5, atol=1e-7)


def test_pytorchs_own_checks_of_an_operator_pass():
    from labkit.kernels.softmax.torch_op import masked_softmax

    torch.library.opcheck(masked_softmax, (torch.randn(2, 33, 33, device="cuda"), 0.125, True))
