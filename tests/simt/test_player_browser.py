"""The player in a real browser: keys, slider, fault, the width of a phone, a notebook's page, and nothing fetched."""

import numpy as np
import pytest
from numba import float32

from labkit import cuda, observe
from tests import browser

pytestmark = [pytest.mark.cpu_device, browser.needed_to("open the player")]


@cuda.jit
def tree(x, out):
    s = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    s[t] = x[t]
    cuda.syncthreads()
    half = 32
    while half > 0:
        if t < half:
            s[t] += s[t + half]
        half //= 2
    if t == 0:
        out[0] = s[0]


@cuda.jit
def unguarded(x, out):
    i = cuda.grid(1)
    out[i] = 2 * x[i]


@pytest.fixture(scope="module")
def players():
    x = np.arange(64, dtype=np.float32)
    return {"tree": observe(tree[1, 64], x, np.zeros(1, np.float32)).play(),
            "unguarded": observe(unguarded[2, 32], x[:40].copy(), np.zeros(40, np.float32)).play()}  # fmt: skip


@pytest.fixture
def opened(chromium, tmp_path):
    """opened(html, width) opens a page; at the end it has asked for nothing but itself, and has not complained."""
    requests = []
    with browser.pages(chromium, kinds=None) as (new_page, complaints):
        def open_page(html, width="desk", **options):
            page = new_page(width, **options)
            page.on("request", lambda request: requests.append(request.url))
            path = tmp_path / "page.html"
            path.write_text(html, encoding="utf-8")
            page.goto(path.as_uri())
            return page

        yield open_page
    assert complaints == []
    assert [url for url in requests if not url.startswith(("file:", "data:", "about:"))] == []


def count(page):
    return page.text_content("#count")


@pytest.mark.sweep
def test_keys_slider_and_fault(opened, players):
    page = opened(players["tree"].document())
    steps = players["tree"].trace["blocks"][0]["steps"]
    assert "64 threads in 2 warps" in page.text_content("#now") and count(page).startswith("step 0 of")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert "They read x[0…63] (8 sectors), and write s[0…63]" in page.text_content("#now")
    assert page.locator("#source li.on").text_content().endswith("s[t] = x[t]")
    page.keyboard.press("PageDown")
    assert "opens" in page.text_content("#now")
    page.keyboard.press("End")
    last = count(page)
    assert last.split()[1] == last.split()[3] and page.is_disabled("#forward")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("Home")
    assert count(page).startswith("step 0") and page.is_disabled("#back")
    page.fill("#time", "5")
    assert count(page).startswith("step 5")
    page.select_option("#unit", "one")
    page.keyboard.press("Escape")
    assert page.get_attribute("#time", "max") == str(steps)
    page.locator("#time").focus()
    page.keyboard.press("f")
    assert "writes s[" in page.text_content("#fault-card") and "reads s[" in page.text_content("#fault-card")
    assert page.locator("#source li.side").count() >= 1
    sides = page.locator(".sides button")
    places = []
    for k in (0, 1):
        sides.nth(k).click()
        places.append(int(count(page).split()[1]))
    assert places[0] < places[1]
    page.keyboard.press("Escape")
    assert page.is_hidden("#fault-card")
    page.select_option("#speed", "60")
    page.fill("#time", str(steps - 3))
    page.locator("#time").focus()
    page.keyboard.press(" ")
    page.wait_for_function("document.getElementById('time').value == document.getElementById('time').max")
    page.wait_for_function("document.getElementById('play').getAttribute('aria-label') == 'Play'")


@cuda.jit
def far_apart(x, out):
    s = cuda.shared.array(96, float32)
    t = cuda.threadIdx.x
    s[t] = x[t]  # a comment that is long enough to reach the end of a line of a hundred and twenty characters, it does
    a = t
    a += 1
    a += 2
    a += 3
    a += 4
    a += 5
    a += 6
    a += 7
    a += 8
    a += 9
    a += 10
    a += 11
    a += 12
    a += 13
    a += 14
    a += 15
    a += 16
    out[t] = s[95 - t] + a


@pytest.mark.sweep
@pytest.mark.parametrize("width", browser.WIDTHS)
def test_a_race_is_played_in_either_order_with_both_lines_in_view(opened, width):
    x = np.arange(96, dtype=np.float32)
    page = opened(observe(far_apart[1, 96], x, np.zeros(96, np.float32)).play().document(), width)
    page.keyboard.press("f")
    for name, ends in (("Bad order", "becomes NaN"), ("Good order", "as it should")):
        page.click(f".orders >> text={name}")
        page.wait_for_function("Number(document.getElementById('time').value) > 1")  # it plays
        page.locator("#time").focus()
        page.keyboard.press("End")
        assert ends in page.text_content(".order-text")
        assert page.is_visible("#wrong-legend") == (name == "Bad order")
        pane = page.locator("#source").bounding_box()
        lines = page.locator("#source li.side")
        assert lines.count() == 2
        for k in (0, 1):
            box = lines.nth(k).bounding_box()
            assert pane["y"] - 1 <= box["y"] and box["y"] + box["height"] <= pane["y"] + pane["height"] + 1
        assert page.evaluate("(source => source.scrollWidth <= source.clientWidth)(document.getElementById('source'))")


@pytest.mark.sweep
@pytest.mark.parametrize("width", browser.WIDTHS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_and_has_contrast(opened, players, width, scheme):
    page = opened(players["unguarded"].document(), width, color_scheme=scheme, reduced_motion="reduce")
    assert page.evaluate("document.documentElement.dataset.theme") == scheme
    page.keyboard.press("f")
    assert "thread 8 of block 1 writes out[40]" in page.text_content("#fault-card")
    assert "24 accesses outside x" in page.text_content("#now")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.input_value("#speed") == "1"
    pale = page.evaluate(CONTRAST)
    assert pale == []


# Texts with less than 4.5 : 1 between their colour and the next background behind them.
CONTRAST = """() => {
    const parts = (colour) => colour.match(/[\\d.]+/g).map(Number);
    const light = (colour) => {
        const [r, g, b] = parts(colour).map((c) => (c /= 255) <= .04045 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4);
        return .2126 * r + .7152 * g + .0722 * b;
    };
    const behind = (element) => {
        for (; element; element = element.parentElement) {
            const colour = getComputedStyle(element).backgroundColor;
            if (!/, 0\\)$|transparent/.test(colour)) return colour;
        }
        return "rgb(255, 255, 255)";
    };
    const found = [];
    for (const element of document.querySelectorAll("main *")) {
        const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
        if (!own || !element.offsetParent || element.disabled || element.closest("svg, option")) continue;
        const [a, b] = [light(getComputedStyle(element).color), light(behind(element))];
        const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
        if (ratio < 4.5) found.push(`${element.textContent.trim().slice(0, 30)}: ${ratio.toFixed(2)}`);
    }
    return found;
}"""


@pytest.mark.sweep
def test_the_keyboard_alone_will_do(opened, players):
    page = opened(players["unguarded"].document())
    reached = []
    for _ in range(30):
        page.keyboard.press("Tab")
        now = page.evaluate("document.activeElement.id || document.activeElement.tagName")
        outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        if now == "BODY":
            break
        assert outline != "none", f"{now} has no visible focus"
        reached.append(now)
    assert {"block", "to-fault", "play", "forward", "time", "speed", "source", "threads"} <= set(reached)
    assert page.evaluate("""[...document.querySelectorAll("button, input, select, canvas[tabindex]")]
        .every((each) => each.ariaLabel || each.labels?.length || each.textContent.trim())""")
    page.focus("#forward")
    page.keyboard.press("Enter")
    page.keyboard.press(" ")  # of a button: it is pressed
    assert count(page).startswith("step 2")
    page.focus("#threads")
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    assert "thread 2, lane 2 of warp 0" in page.text_content("#threads-detail")
    assert "writes out[34]" in page.text_content("#threads-detail") and count(page).startswith("step 2")
    page.focus("#memory canvas")
    page.keyboard.press("ArrowRight")
    assert "x[0] = 0" in page.text_content("#memory .detail")
    page.keyboard.press("Escape")
    assert page.text_content("#memory .detail") == ""


@pytest.mark.sweep
def test_two_in_one_notebook_do_not_collide(opened, players):
    """As a notebook's page has them: each as high as its content, each with its own keys, as dark as JupyterLab."""
    html = "".join(players[name]._repr_html_() for name in ("tree", "unguarded"))
    page = opened(f'<!doctype html><body data-jp-theme-light="false"><div style="width:800px">{html}</div></body>')
    frames = page.frames[1:]
    assert len(frames) == 2
    for frame in frames:
        assert frame.evaluate("document.documentElement.dataset.theme") == "dark"
        frame.wait_for_function("innerHeight >= document.body.scrollHeight - 1")
    frames[0].click("#forward")
    page.keyboard.press("ArrowRight")
    assert frames[0].text_content("#count").startswith("step 2")
    assert frames[1].text_content("#count").startswith("step 0")
