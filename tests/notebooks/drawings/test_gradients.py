"""The figures of the lesson "Gradients of a kernel": what they say."""

from labkit.course.drawings import gradients as pictures


def test_each_product_adds_up_the_axis_that_its_result_lacks():
    for result, first, second, summed, _ in pictures.PRODUCTS:
        axes = [set(pictures.AXES[name]) for name in (first, second)]
        assert axes[0] & axes[1] == {summed}
        assert set(pictures.AXES[result]) == axes[0] ^ axes[1]


def test_the_products_are_drawn_with_their_shapes():
    figure = pictures.linear_products()
    assert "dW (N, K) from dout (T, N) and x (T, K), added up over T" in figure.summary
    assert figure.svg().startswith("<svg")


def test_the_best_step_of_each_format_is_named():
    figure = pictures.step_sizes([1.0, 1e-3, 1e-6], {"float64": [1.0, 1e-6, 1e-9], "float32": [1.0, 1e-4, 1e-1]})
    assert "in float64 smallest, 1e-09, for a step of 1e-06" in figure.summary
    assert "in float32 smallest, 1e-04, for a step of 1e-03" in figure.summary
