"""The window in a real browser, at the widths of a desk and of a phone: it draws what the engine's thread knows, and
its controls do what they say, by mouse, by touch and by keyboard alone."""

import contextlib
import random
import time
from types import SimpleNamespace

import pytest

from labkit.engine import LLMEngine
from labkit.engine.outputs import Sampled
from labkit.models.load import TINY_LLAMA, folder
from labkit.models.tokenizer import Tokenizer
from labkit.serve.app import create_app
from labkit.serve.async_engine import AsyncEngine
from labkit.serve.engine_thread import EngineThread
from labkit.serve.settings import Settings
from tests import browser
from tests.serve.serving import listening, until

pytestmark = browser.needed_to("open the window")


class Paced:
    """Samples tokens that mean nothing, a step every `seconds`."""

    page_size, max_model_len, vocab_size = 16, 1024, 4096

    def __init__(self, num_pages: int):
        self.num_pages, self.seconds, self._random = num_pages, 0.015, random.Random(1)

    def launch(self, step):
        end = time.monotonic() + self.seconds
        sampled = [Sampled(self._random.randrange(300, 4000)) for _ in step.samples]

        def tokens():
            time.sleep(max(0.0, end - time.monotonic()))
            return sampled

        return SimpleNamespace(tokens=tokens)


@contextlib.contextmanager
def serving(num_pages=120, template=True, **settings):
    """Yields the engine's thread and its address."""
    tokenizer = Tokenizer.of(folder(TINY_LLAMA))
    if not template:
        tokenizer.template = None
    transport = EngineThread(LLMEngine(Paced(num_pages), tokenizer, max_num_seqs=8, max_num_batched_tokens=128))
    transport.start()
    thread = AsyncEngine(transport)
    with listening(create_app(thread, Settings(**settings))) as address:
        try:
            yield thread, f"{address}/"
        finally:
            thread.stop(drain_s=0)


@pytest.fixture
def opened(chromium):
    """opened(address, width) opens a page; at the end none of them has complained."""
    with browser.pages(chromium) as (new_page, complaints):
        def open_page(address, width="desk", **options):
            page = new_page(width, **options)
            page.goto(address)
            return page

        open_page.complaints = complaints
        yield open_page
    assert [each for each in complaints if "ERR_CONNECTION_REFUSED" not in each] == []  # its server went first


def state(page, wanted):
    page.wait_for_selector(f"#state[data-is={wanted}]")


def show(page, tab):
    """On a phone; at a desk both are there."""
    if page.locator(f"[data-show={tab}]").is_visible():
        page.click(f"[data-show={tab}]")


def becomes(page, expression):
    """Playwright's own way to wait needs an eval, which the page's policy forbids."""
    until(lambda: page.evaluate(expression))


def has_no_scrollbar_below(page):
    return page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.sweep(every=True)
def test_the_page_opens_without_a_complaint_and_shows_the_pages(opened):
    with serving() as (_, address):
        page = opened(address, reduced_motion="reduce")
        state(page, "idle")
        assert "120 pages of 16 tokens: 0 held" in page.text_content("#pages-note")
        assert page.text_content("#model") == "tiny-llama" and "8 seats free" not in page.text_content("#seats")
        page.focus("#map")
        page.keyboard.press("ArrowRight")
        becomes(page, "document.getElementById('page-detail').textContent == 'Page 1: free.'")


@pytest.mark.sweep
@pytest.mark.parametrize("width", browser.WIDTHS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_chat_streams_and_stops(opened, width, scheme):
    with serving() as (thread, address):
        page = opened(address, width, color_scheme=scheme)
        state(page, "idle")
        assert has_no_scrollbar_below(page)
        show(page, "chat")
        page.evaluate("""() => {
            const list = document.getElementById("messages");
            window.seen = new Set();
            new MutationObserver(() => seen.add(list.querySelector(".answer .text")?.textContent.length))
                .observe(list, {subtree: true, childList: true, characterData: true});
        }""")
        page.fill("#message", "What is a hacker?")
        page.press("#message", "Enter")
        page.wait_for_selector(".messages .facts")
        assert page.evaluate("seen.size") > 5, "the answer came at once"
        assert "tokens/s" in page.text_content(".messages .facts")
        assert has_no_scrollbar_below(page)
        thread.delay_s = 0.1
        page.fill("#message", "And then?")
        page.click("#send")
        becomes(page, "document.querySelectorAll('.answer .text')[1]?.textContent.length > 5")
        (running,) = thread.ask(lambda there: [each.request for each in there.engine.scheduler.running]).result(5)
        assert len(running.prompt) > 40, "the conversation so far is no part of the prompt"
        page.click("#stop")
        page.wait_for_selector(".messages .facts >> text=stopped")
        until(lambda: not thread.unfinished and thread.stats.free_pages == 120)
        assert thread.steps < 250
        page.click("#new-chat")
        assert page.locator(".messages li").count() == 0


@pytest.mark.sweep
@pytest.mark.parametrize("width", browser.WIDTHS)
def test_seats_pages_and_queue_are_those_of_the_engine(opened, width):
    with serving() as (thread, address):
        page = opened(address, width)
        state(page, "idle")
        thread.delay_s = 0.05
        page.click("#demo")
        becomes(page, "document.querySelectorAll('.seat').length == 8")
        becomes(page, "document.querySelectorAll('.queue li:not(.note)').length == 4")
        until(lambda: thread.ask(lambda there: there.engine.scheduler.running[-1].output_length).result(5) > 3)
        page.click("#pause")
        state(page, "paused")
        time.sleep(0.3)
        running, blocks = thread.ask(lambda there: (there.engine.scheduler.running, there.engine.blocks)).result(5)
        shown = [(row.locator(".chip").text_content(), row.locator(".id").text_content())
                 for row in page.locator(".seat").all()]
        assert shown == [(str(each.seat), f"#{each.request.request_id}")
                         for each in sorted(running, key=lambda each: each.seat)]
        holders = {number: [each for each in running if number in each.pages] for number in range(120)}
        most = max(holders, key=lambda number: len(holders[number]))
        assert len(holders[most]) > 4, "no prefix is shared"
        note = page.text_content("#pages-note")
        assert f"{120 - blocks.num_free} held, {sum(len(each) > 1 for each in holders.values())} of them by" in note
        page.focus("#map")
        page.keyboard.press("Home")
        for number in range(max(holders[most][0].pages) + 1):
            becomes(page, f"document.getElementById('page-detail').textContent.startsWith('Page {number}')")
            text = page.text_content("#page-detail")
            for each in holders[number][:6]:
                begin = each.pages.index(number) * 16
                end = min(begin + 16, each.computed) - 1
                assert f"seat {each.seat} (request #{each.request.request_id}), tokens {begin} to {end}" in text
            assert ("free" in text) == (not holders[number])
            assert ("shared by" in text) is (len(holders[number]) > 1)
            page.keyboard.press("ArrowRight")
        assert has_no_scrollbar_below(page)
        page.locator(".seat .who").first.click()
        page.wait_for_selector(".seat .who[aria-pressed=true]")
        page.keyboard.press("Escape")
        becomes(page, "!document.querySelector('.seat .who[aria-pressed=true]')")
        page.click("#demo")  # it is stopped
        until(lambda: not thread.unfinished)


@pytest.mark.sweep
@pytest.mark.parametrize("width", browser.WIDTHS)
def test_pause_step_once_and_slow_motion(opened, width):
    with serving() as (thread, address):
        page = opened(address, width)
        state(page, "idle")
        assert page.is_disabled("#step")
        page.click("#pause")
        state(page, "paused")
        page.click("#demo")
        until(lambda: thread.unfinished == 12)
        for number in range(1, 6):
            becomes(page, "!document.getElementById('step').disabled")
            page.click("#step")
            becomes(page, f"document.getElementById('state').textContent == 'paused at step {number}'")
            time.sleep(0.1)
            assert thread.steps == number
        page.fill("#slow", "3")
        until(lambda: thread.delay_s == 0.25)
        assert page.text_content("#slow-text") == "0.25 s a step"
        page.click("#pause")
        state(page, "runs")
        assert page.text_content("#state") == "slow motion"
        before = thread.steps
        time.sleep(1.0)
        assert 2 <= thread.steps - before <= 5
        page.fill("#slow", "0")
        until(lambda: not thread.unfinished, 20)
        state(page, "idle")
        assert "prefill" in page.get_attribute("#step-bar", "aria-label").lower() or page.text_content("#step-bar")
        assert "#" not in page.text_content("#queue")


@pytest.mark.sweep
def test_the_keyboard_alone_will_do(opened):
    with serving() as (thread, address):
        page = opened(address)
        state(page, "idle")

        def focused():
            return page.evaluate("document.activeElement.id || document.activeElement.className")

        def go_to(wanted):
            for _ in range(40):
                page.keyboard.press("Tab")
                outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
                assert outline != "none", f"the focus does not show at {focused()}"
                if focused() == wanted:
                    return
            raise AssertionError(f"the key Tab does not lead to {wanted}")

        go_to("message")
        page.keyboard.type("What is a kernel?")
        page.keyboard.press("Enter")
        page.wait_for_selector(".messages .answer")
        go_to("pause")
        page.keyboard.press("Space")
        state(page, "paused")
        before = thread.steps
        becomes(page, "!document.getElementById('step').disabled")
        go_to("step")
        page.keyboard.press("Enter")
        until(lambda: thread.steps == before + 1)
        go_to("slow")
        page.keyboard.press("ArrowRight")
        until(lambda: thread.delay_s == 0.05)
        page.keyboard.press("Home")
        until(lambda: thread.delay_s == 0)
        page.wait_for_selector(".seat .who")
        go_to("who")
        page.keyboard.press("Enter")
        page.wait_for_selector(".seat .who[aria-pressed=true]")
        go_to("map")
        page.keyboard.press("Enter")
        page.keyboard.press("Escape")
        for _ in range(40):
            page.keyboard.press("Shift+Tab")
            if focused() == "pause":
                break
        page.keyboard.press("Enter")
        page.wait_for_selector(".messages .facts")


@pytest.mark.sweep
def test_a_server_with_a_key_is_asked_with_it(opened):
    with serving(api_key="secret") as (thread, address):
        page = opened(address, "phone")
        state(page, "lost")
        show(page, "chat")
        page.fill("#key", "secret")
        page.press("#key", "Enter")
        state(page, "idle")
        assert page.is_hidden("#key-row")
        page.fill("#message", "What is a hacker?")
        page.press("#message", "Enter")
        page.wait_for_selector(".messages .facts")
        refused = [each for each in opened.complaints if "401" in each]
        opened.complaints[:] = [each for each in opened.complaints if each not in refused]
        assert len(refused) == 1
        page.reload()
        state(page, "idle")  # the tab keeps it


@pytest.mark.sweep
def test_a_model_without_a_template_goes_on_with_the_text_and_a_window_without_control_has_no_buttons(opened):
    with serving(template=False, host="0.0.0.0") as (thread, address):
        page = opened(address)
        state(page, "idle")
        assert page.is_hidden("#pause") and page.is_visible("#no-control")
        page.fill("#message", "A hacker is")
        page.press("#message", "Enter")
        page.wait_for_selector(".messages .facts")
        assert len(page.text_content(".answer .text")) > 20


@pytest.mark.sweep
def test_a_server_that_goes_is_shown_and_found_again(opened):
    with serving() as (thread, address):
        page = opened(address)
        state(page, "idle")
        thread.drain()
        state(page, "lost")
        until(lambda: not thread.transport.observers)
        assert "about to end" in page.text_content("#state") or "not connected" in page.text_content("#state")
    opened.complaints.clear()


@pytest.mark.sweep
def test_a_page_that_is_not_looked_at_costs_the_engine_nothing(opened):
    with serving() as (thread, address):
        page = opened(address)
        state(page, "idle")
        assert len(thread.transport.observers) == 1
        page.evaluate("""Object.defineProperty(document, "hidden", {value: true, configurable: true});
                         document.dispatchEvent(new Event("visibilitychange"))""")
        until(lambda: not thread.transport.observers)
        page.evaluate("""Object.defineProperty(document, "hidden", {value: false, configurable: true});
                         document.dispatchEvent(new Event("visibilitychange"))""")
        until(lambda: len(thread.transport.observers) == 1)
        state(page, "idle")
