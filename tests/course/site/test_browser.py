"""The site in a real browser: no complaint of axe, by keyboard alone, results that wait, words that are explained, code
that is copied, plots that are enlarged, and an output with a page of its own that stays alive."""

import nbformat
import pytest

from labkit._common.paths import REPOSITORY
from labkit.course import registry as courses
from labkit.course import site
from tests import browser
from tests.course.site.pages import add_term, keep, plotted, ship, strict

pytestmark = browser.needed_to("open the site")

LESSON = """\
# %% [markdown]
# Two *warps* add $n$ numbers.
#
# $$t = a_0 + a_1 + a_2 + a_3 + a_4 + a_5 + a_6 + a_7 + a_8 + a_9 + b_0 + b_1 + b_2 + b_3 + b_4 + b_5$$
#
# | | a column with a long head | another column with a long head | and one more of these columns |
# |---|---|---|---|
# | 1 | 2 | 3 | 4 |
#
# ## A section
#
# Before you run the next cell: what is the sum?

# %%
def add(a, b):
    return a + b  # a comment that is long enough to reach the end of a line of a hundred and twenty characters, or more


print(add(40, 2))

# %% [markdown]
# ## Another section
#
# The end.
"""
PLOT = ('<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 900 300" width="900" height="300">'
        '<text x="20" y="40">A plot</text></svg>')
ALIVE = '<p id="p">still</p><script>document.getElementById("p").textContent = "alive"</script>'
PLAYER = ("<iframe title='The player' style='width:100%;height:80px' "  # as labkit's player writes it
          f"srcdoc='{ALIVE.replace('&', '&amp;').replace(chr(39), '&#39;')}'></iframe>")


def write(root, text=LESSON):
    """The site of a small course. Its first lesson has an output of each kind, below a prediction."""
    course = courses.load(root)
    v4 = nbformat.v4
    outputs = [
        v4.new_output("stream", text="42 " + "and a line of output that is too long for a telephone " * 4),
        v4.new_output("display_data", data={"text/html": PLAYER}),
        v4.new_output("display_data", data={"image/svg+xml": PLOT, "text/plain": "Time over size"}),
        v4.new_output("display_data", data={"text/html": "<table><thead><tr><th></th><th>ms</th></tr></thead><tbody>"
                                                         "<tr><td>a</td><td>2</td></tr></tbody></table>"}),
    ]
    add_term(course, "warp", "32 threads of a block that execute the same instruction together.")
    ship(course.chapters[0], outputs, text)
    keep(course, course.chapters[1])
    return site.write(course)


@pytest.fixture
def opened(chromium):
    """opened(path, width) opens a page; at the end none of them has complained."""
    with browser.pages(chromium) as (new_page, complaints):
        def open_page(path, width="desk", fragment="", **options):
            page = new_page(width, **options)
            page.goto(f"{path.as_uri()}{fragment}")
            return page

        yield open_page
    assert complaints == []


def axe_complaints(page) -> list[str]:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")
    options = {"preload": False, "resultTypes": ["violations"]}  # preload: of stylesheets, which a file: page may not
    found = axe.Axe().run(page, options=options).response["violations"]
    return [f"{each['id']}: {node['html']}: {node['failureSummary']}" for each in found for node in each["nodes"]]


@pytest.mark.sweep
def test_axe_has_no_complaints_and_nothing_is_wider_than_a_phone(opened, course_dir):
    index = write(course_dir)
    for name, scheme in (("index.html", "dark"), ("00_first.html", "light")):  # the others: below, in the sweep
        page = opened(index.parent / name, "phone", color_scheme=scheme, reduced_motion="reduce")
        if name == "00_first.html":
            page.click(".reveal")
        assert axe_complaints(page) == [], name
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), name


@pytest.mark.sweep(every=True)
def test_a_result_waits_and_what_is_in_it_lives(opened, course_dir):
    page = opened(write(course_dir).parent / "00_first.html")
    assert not page.locator(".outputs").is_visible()
    page.focus("details.result summary")
    page.keyboard.press("Enter")
    assert page.locator(".outputs .stream").is_visible()
    frame = page.frame_locator("iframe[title='The player']")
    frame.locator("text=alive").wait_for()
    page.click(".reveal")  # all are shown
    page.click(".reveal")
    assert not page.locator(".outputs").is_visible()
    assert page.locator(".reveal").get_attribute("aria-pressed") == "false"


FOLDED = LESSON.replace("# ## Another", "# The sum of forty and two is a zebra, which nobody expects.\n#\n# ## Another")


@pytest.mark.sweep
def test_a_guess_is_kept_beside_the_result(opened, course_dir):
    page = opened(write(course_dir).parent / "00_first.html")
    page.fill(".guess input", "about 42")
    page.reload()
    assert page.input_value(".guess input") == "about 42" and page.locator(".guess").is_visible()
    page.click("details.result summary")
    assert page.locator(".outputs .stream").is_visible() and page.locator(".guess").is_visible()


@pytest.mark.sweep
@pytest.mark.parametrize("start", ["index.html", "00_first.html"])
def test_what_the_search_finds_in_what_is_folded_is_opened(opened, course_dir, start):
    page = opened(write(course_dir, FOLDED).parent / start)
    for query, opens in (("warps", False), ("zebra", True)):
        page.fill(".search input", query)
        page.click("#search_found a:has-text('First')")
        page.wait_for_url("**/00_first.html*")
        page.wait_for_function(f"document.querySelector('details.result').open == {str(opens).lower()}")
    assert page.locator("text=nobody expects").last.is_visible()


@pytest.mark.sweep
def test_on_paper_everything_is_open(opened, course_dir):
    index = write(course_dir, FOLDED)
    for script in (True, False):
        page = opened(index.parent / "00_first.html", java_script_enabled=script)
        page.emulate_media(media="print")
        if script:
            page.evaluate("dispatchEvent(new Event('beforeprint'))")
        text = page.locator("main .result .prose p")
        assert text.is_visible() and not page.locator("details.result summary").is_visible()
        assert not page.locator(".guess").is_visible()  # it is empty


@pytest.mark.sweep
def test_a_word_is_explained_by_keyboard_and_nothing_moves(opened, course_dir):
    page = opened(write(course_dir).parent / "00_first.html")
    height = page.evaluate("document.documentElement.scrollHeight")
    page.focus("a.term")
    assert page.locator("#tip_box").text_content().startswith("32 threads of a block")
    assert page.evaluate("document.documentElement.scrollHeight") == height
    page.keyboard.press("Escape")
    assert not page.locator("#tip_box").is_visible()
    page.hover("a.term")
    assert page.locator("#tip_box").is_visible()
    page.click("a.term")
    page.wait_for_url("**/glossary.html#warp")
    page.click(".used a")
    page.wait_for_url("**/00_first.html")


@pytest.mark.sweep
def test_the_search_is_reached_and_left_by_keyboard(opened, course_dir):
    page = opened(write(course_dir))
    page.keyboard.press("/")
    page.keyboard.type("warp")
    page.wait_for_selector("#search_found a")
    titles = page.locator("#search_found strong").all_text_contents()
    assert titles[0] == "warp" and "First" in titles
    assert page.locator("#search_found small").first.text_content() == "Glossary"
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.wait_for_url("**/glossary.html#warp")


@pytest.mark.sweep
def test_code_wraps_and_copies_as_it_was(opened, course_dir):
    index = write(course_dir)
    for width in browser.WIDTHS:
        page = opened(index.parent / "00_first.html", width, permissions=["clipboard-read", "clipboard-write"])
        assert page.evaluate("[...document.querySelectorAll('.cell .highlight pre')]"
                             ".every(block => block.scrollWidth <= block.clientWidth)")
        page.focus(".cell .copy")
        page.keyboard.press("Enter")
        page.wait_for_selector("text=Copied")
        copied = page.evaluate("navigator.clipboard.readText()")
        assert copied.startswith("def add(a, b):\n    return a + b  # a comment")
        assert copied.endswith("\n\n\nprint(add(40, 2))\n")


@pytest.mark.sweep
@pytest.mark.parametrize("width", browser.WIDTHS)
def test_a_plot_is_enlarged_and_put_back_by_keyboard(opened, course_dir, width):
    page = opened(write(course_dir).parent / "00_first.html", width)
    page.click(".reveal")
    page.focus("a.enlarge")
    page.keyboard.press("Enter")
    image = page.locator("dialog.zoom img")
    assert image.bounding_box()["width"] >= 760
    page.keyboard.press("Escape")
    assert not image.is_visible()
    assert page.evaluate("document.activeElement.className") == "enlarge"


@pytest.mark.sweep
def test_the_theme_is_chosen_and_kept(opened, course_dir):
    index = write(course_dir)
    page = opened(index, color_scheme="dark")

    def paper():
        return page.evaluate("getComputedStyle(document.body).backgroundColor")

    dark = paper()
    page.click("button.theme")
    light = paper()
    assert light != dark and page.locator("button.theme").get_attribute("title") == "Theme: light"
    page.goto((index.parent / "00_first.html").as_uri())
    assert paper() == light
    page.click(".reveal")
    inner = page.frame_locator("iframe[title='The player']").locator("html")  # the player's own page follows
    page.wait_for_function("document.querySelector('iframe').contentDocument.documentElement.dataset.theme == 'light'")
    page.click("button.theme")
    assert paper() == dark and inner.get_attribute("data-theme") == "dark"


@pytest.mark.sweep
def test_a_plot_is_dark_where_the_page_is(opened, course_dir):
    page = opened(write(course_dir).parent / "00_first.html", color_scheme="dark")
    page.click(".reveal")
    shown = ("[...document.querySelectorAll('.plot img')].filter(one => one.checkVisibility())"
             ".map(one => one.getAttribute('src'))")
    assert page.evaluate(shown) == ["images/00_first-1-dark.svg"]
    page.focus("a.enlarge")
    page.keyboard.press("Enter")
    assert page.locator("dialog.zoom img").get_attribute("src").endswith("images/00_first-1-dark.svg")
    page.keyboard.press("Escape")
    page.click("button.theme")  # light, whatever the system says
    assert page.evaluate(shown) == ["images/00_first-1.svg"]


@pytest.mark.sweep
def test_a_lesson_is_printed_whole_and_without_what_only_a_screen_needs(opened, course_dir):
    page = opened(write(course_dir).parent / "00_first.html", color_scheme="dark")
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    for kept in (".outputs .stream", "h1", ".in-light"):
        assert page.locator(kept).first.is_visible(), kept
    for gone in (".bar", ".toc", ".tools", ".result > summary", ".in-dark", ".copy", ".around"):
        assert not page.locator(gone).first.is_visible(), gone
    page.set_viewport_size({"width": 700, "height": 1000})  # of a sheet of A4
    cut = ("[...document.querySelectorAll('main pre, main .line')].filter(one => one.checkVisibility()"
           " && one.scrollWidth > one.clientWidth + 1).length")
    assert page.evaluate(cut) == 0
    assert page.pdf().startswith(b"%PDF")


@pytest.mark.sweep
def test_a_ladder_shows_the_readers_gpu_and_the_choice_is_kept(opened, course_dir, atlas):
    from labkit.measure import plots

    course = courses.load(course_dir)
    for chapter in course.chapters:
        ship(chapter, [plotted(plots.ladder(atlas["matmul"], None)), plotted(plots.ladder(atlas["vector_add"], None))])
    index = site.write(course)
    for width in browser.WIDTHS:
        page = opened(index.parent / "00_first.html", width)
        product, addition = page.locator(".ladder").all()

        def shown(ladder):
            return [image.get_attribute("alt").split(". ")[-1] for image in ladder.locator("img:visible").all()]

        assert product.get_by_label("Your GPU").input_value() == "" and not page.locator(".bound:visible").count()
        course_plots = [shown(each) for each in (product, addition)]
        assert all("Measured on NVIDIA H200" in text for (text,) in course_plots)
        product.get_by_label("Your GPU").select_option(label="NVIDIA GeForce RTX 4060")
        (own,) = shown(product)
        assert own.startswith("Measured on NVIDIA GeForce RTX 4060") and not product.locator(".bound:visible").count()
        assert addition.get_by_label("Your GPU").input_value() == "nvidia-geforce-rtx-4060"  # one choice for all
        assert "not a measurement" in addition.locator(".bound:visible").inner_text()
        assert shown(addition) == course_plots[1]  # below the bound
        assert axe_complaints(page) == []
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")

        page.goto((index.parent / "01_second.html").as_uri())
        assert shown(page.locator(".ladder").first) == [own]
        page.emulate_media(media="print", color_scheme="dark")
        assert shown(page.locator(".ladder").first) == [own] and page.locator(".bound:visible").count() == 1
        assert not page.locator(".ladder select:visible").count()
        page.emulate_media(media="screen")
        page.get_by_label("Your GPU").first.select_option("tesla-t4")
        assert page.locator(".bound:visible").count() == 2
        page.get_by_label("Your GPU").first.select_option("nvidia-h200")  # whose ladders the page has
        assert [shown(each) for each in page.locator(".ladder").all()] == course_plots
        page.evaluate("localStorage.setItem('labkit-gpu', 'a GPU that is no longer listed')")
        page.reload()
        assert [shown(each) for each in page.locator(".ladder").all()] == course_plots
        assert page.get_by_label("Your GPU").first.input_value() == ""


@pytest.mark.sweep
def test_without_a_script_a_ladder_is_the_courses(opened, course_dir, atlas):
    from labkit.measure import plots

    course = courses.load(course_dir)
    ship(course.chapters[0], [plotted(plots.ladder(atlas["matmul"], None))])
    page = opened(site.write(course).parent / "00_first.html", java_script_enabled=False)
    assert page.locator(".ladder img:visible").count() == 1
    assert "Measured on NVIDIA H200" in page.locator(".ladder img:visible").get_attribute("alt")
    assert not page.locator(".ladder :is(label, .bound, .instead):visible").count()


@pytest.mark.sweep
def test_an_exercise_is_printed_without_what_is_folded(opened, course_dir):
    toml = course_dir / "course.toml"
    toml.write_text(toml.read_text().replace('name = "00_first"', 'name = "00_first"\nexercises = ["saxpy"]'))
    page = opened(write(course_dir).parent / "exercises" / "saxpy.html")
    page.click("text=Hint 1")
    page.emulate_media(media="print")
    for kept in ("text=You start from", "text=Hint 1", "details[open] .prose"):
        assert page.locator(kept).first.is_visible(), kept
    for gone in ("text=Hint 2", "h2:text('Answer')", "h2:text('Known mistakes')", ".mistakes", "footer"):
        assert not page.locator(gone).first.is_visible(), gone


@pytest.mark.sweep
def test_what_is_wide_scrolls_in_its_own_box(opened, course_dir):
    """At no width is the page itself wider than the window, and nothing reaches out of it unless its box scrolls."""
    index = write(course_dir)
    outside = """[...document.querySelectorAll('main *')].filter(one => {
        if (one.closest('svg, .unseen') || one.getBoundingClientRect().right <= innerWidth + 1) return false;
        for (let box = one.parentElement; box; box = box.parentElement)
            if (['auto', 'scroll'].includes(getComputedStyle(box).overflowX)) return false;
        return true;
    }).map(one => one.outerHTML.slice(0, 60))"""
    for width in browser.WIDTHS:
        page = opened(index.parent / "00_first.html", width)
        page.click(".reveal")
        assert page.evaluate(outside) == [] and page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.sweep
def test_the_picture_moves_unless_it_should_not(opened, course_dir):
    index = write(course_dir)
    running = ("document.querySelector('.walk svg').getAnimations({subtree: true})"
               ".filter(each => each.playState == 'running').length")
    page = opened(index)
    assert page.evaluate(running) > 16
    page.check(".walk .pause")
    assert page.evaluate(running) == 0
    assert opened(index, reduced_motion="reduce").evaluate(running) == 0


@pytest.mark.sweep
def test_without_scripts_everything_can_be_read(opened, course_dir):
    index = write(course_dir)
    page = opened(index.parent / "00_first.html", "phone", java_script_enabled=False)
    page.click("details.result summary")
    assert page.locator(".outputs .stream").is_visible()
    page.click(".menu summary")
    page.click(".menu >> text=Second")
    page.wait_for_url("**/01_second.html")
    page.click("text=Glossary")
    assert page.locator("#warp").is_visible()


@pytest.mark.sweep
@pytest.mark.parametrize("width", browser.WIDTHS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_has_no_complaints_at_any_width(opened, course_dir, width, scheme):
    index = write(course_dir)
    for name in ("index.html", "00_first.html", "glossary.html", "results.html"):
        page = opened(index.parent / name, width, color_scheme=scheme, reduced_motion="reduce")
        page.click(".menu summary")
        if name == "00_first.html":
            page.evaluate("document.querySelector('.reveal').click()")
        assert axe_complaints(page) == [], name


@pytest.mark.sweep
def test_axe_has_no_complaints_about_the_courses_own_pages(opened, tmp_path):
    course = courses.load(REPOSITORY)
    index = site.write(course, tmp_path / "site", from_here=False)
    assert site.broken_links(index.parent) == []
    for path in index.parent.rglob("*.html"):
        strict(path.read_text(encoding="utf-8"))
    exercise = course.exercises_of(course.chapters[1])[0].name
    names = ("glossary", "gpus", "classes", "difficulties", course.chapters[1].name, "exercises/index",
             f"exercises/{exercise}")
    for path in (index, *(index.parent / f"{name}.html" for name in names)):
        page = opened(path, color_scheme="light", reduced_motion="reduce")
        page.evaluate("document.querySelector('.reveal')?.click()")
        assert axe_complaints(page) == [], path.name

