"""Matplotlib's SVG made small: the same picture in fewer bytes, with its text as text."""

import re
import xml.etree.ElementTree as ET

import pytest

from labkit.measure.plots import style, svg
from tests.measure.plots import gallery

SVG = "{http://www.w3.org/2000/svg}"


def figure(draw):
    made, ax = style.canvas(2.0, "A <title> & more", "What is on it: a < b")
    draw(ax)
    return made


def elements(made, tag):
    return list(ET.fromstring(made.svg()).iter(SVG + tag))


def test_text_stays_text_and_has_a_list_of_fonts():
    made = figure(lambda ax: ax.text(1, 1, "two\nlines", color="#009E73"))
    root = ET.fromstring(made.svg())
    assert root.get("font-family").startswith("'DejaVu Sans', Verdana") and root.get("role") == "img"
    assert root.find(SVG + "title").text == "What is on it: a < b"
    words = ["".join(text.itertext()) for text in root.iter(SVG + "text")]
    assert "A <title> & more" in words and {"two", "lines"} <= set(words)
    assert "font-family" not in made.svg().replace("font-family", "", 1), "the list of fonts stands once"


def test_colours_and_numbers_survive():
    def draw(ax):
        style.draw_box(ax, 1, 1, 0.5, 0.25, fill="#009e73", edge="#d6e6f1")

    path = elements(figure(draw), "path")[-1]
    assert path.get("fill") == "#009e73" and path.get("stroke") == "#d6e6f1"
    assert path.get("d") == "M72 72H108V90H72z"


def test_boxes_that_look_alike_become_one_path_and_others_do_not():
    def draw(ax):
        for k, fill in enumerate("rrrbr"):
            style.draw_box(ax, k, 1, 1, 0.5, fill=fill)

    boxes = [path.get("d").count("M") for path in elements(figure(draw), "path") if path.get("stroke") == "#ffffff"]
    assert boxes == [3, 1, 1]


def test_no_bytes_of_this_day_or_machine():
    made = figure(lambda ax: ax.plot([1, 2], [1, 1.5], "o-"))
    assert made.svg() == made.svg()
    assert not re.search(r"20\d\d-\d\d-\d\d|matplotlib|<metadata", made.svg())


@pytest.mark.parametrize("name", ["crossover", "timeline", "slots", "bits_of"])
def test_figures_are_valid_and_small(name):
    text = gallery.FIGURES[name]().svg()
    root = ET.fromstring(text)
    ids = {one.get("id") for one in root.iter() if one.get("id")}
    used = set(re.findall(r"url\(#([^)]+)\)", text)) | {
        one.get(svg.XLINK + "href")[1:] for one in root.iter(SVG + "use")}
    assert used <= ids, "what is used is defined"
    assert len(text) < 60_000
