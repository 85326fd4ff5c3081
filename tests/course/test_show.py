"""show_source on everything a lesson may hand it."""

from types import SimpleNamespace

import pytest

from labkit.course import show
from labkit.course.show import show_source


def launcher(a, b, out, stream=None):
    """Adds on the device."""
    if a.shape != b.shape:
        raise ValueError("a and b must have the same shape")


class Holder:
    def method(self):
        return 1


def test_a_function_shows_its_path_line_and_text():
    source = show_source(launcher)
    assert source.path == "tests/course/test_show.py"
    assert str(source).startswith(f"# tests/course/test_show.py:{launcher.__code__.co_firstlineno}\ndef launcher(a, b")
    assert '    """Adds on the device."""\n' in source.code


def test_a_kernel_shows_the_python_function_that_it_was_made_from():
    kernel = SimpleNamespace(py_func=launcher)  # numba.cuda's dispatchers and the CPU device's kernels have py_func
    assert show_source(kernel).code == show_source(launcher).code


def test_a_method_is_dedented_and_a_class_is_shown_whole():
    assert show_source(Holder.method).code == "def method(self):\n    return 1\n"
    assert show_source(Holder).code.startswith("class Holder:\n    def method")


def test_a_part_is_dedented_and_knows_its_line():
    source = show_source(launcher, "if a.shape", "raise")
    assert source.code == 'if a.shape != b.shape:\n    raise ValueError("a and b must have the same shape")\n'
    assert source.line == launcher.__code__.co_firstlineno + 2
    assert show_source(launcher, "if a.shape").code == source.code
    with pytest.raises(ValueError, match="no line of launcher contains 'nothing'"):
        show_source(launcher, "nothing")
    with pytest.raises(ValueError, match="no line of launcher from 'raise' on contains 'Adds'"):
        show_source(launcher, "raise", "Adds")


def test_a_notebook_gets_highlighted_html_and_a_terminal_plain_text():
    bundle = show_source(launcher)._repr_mimebundle_()
    assert bundle["text/plain"] == repr(show_source(launcher))
    html = bundle["text/html"]
    assert '<span class="lk-k">def</span>' in html
    assert "tests/course/test_show.py:" in html
    assert "http" not in html


def test_html_in_a_kernel_is_escaped():
    def shows_tags():
        return "<script>" < "&"

    assert "<script>" not in show_source(shows_tags)._html()


def test_what_has_no_source_is_refused_with_the_reason():
    with pytest.raises(TypeError, match="obj must be a kernel, a function or a class written in Python, not 3"):
        show_source(3)
    namespace = {}
    exec("def typed_in(): pass", namespace)
    with pytest.raises(ValueError, match="source of typed_in is not on disk"):
        show_source(namespace["typed_in"])


def test_a_path_outside_the_repository_shows_only_its_name():
    assert show._short("/somewhere/else/kernels.py") == "kernels.py"
    assert show._short("/tmp/ipykernel_12/345.py") == ""


def test_a_cached_function_shows_its_own_source():
    from labkit.kernels.norm.layernorm import make_layernorm_warp

    shown = show_source(make_layernorm_warp)
    assert shown.name == "make_layernorm_warp"
    assert "def layernorm_warp_kernel" in shown.code
