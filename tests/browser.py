"""A real browser for the tests of what people see: Chromium, where one is installed. tests/conftest.py starts it."""

import shutil
from contextlib import contextmanager

import pytest

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
WIDTHS = {"desk": (1200, 900), "phone": (400, 820)}
EIGHT_S = 8_000  # milliseconds


def needed_to(do: str):
    """The marker of tests that are skipped without a browser."""
    return pytest.mark.skipif(BROWSER is None, reason=f"no browser is installed: Chromium would {do}")


@contextmanager
def started():
    """A Chromium that playwright drives."""
    playwright = pytest.importorskip("playwright.sync_api", reason="no browser is driven: playwright is not installed")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=BROWSER, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@contextmanager
def pages(chromium, kinds=("error",)):
    """Yields new_page(width), and a list of what all its pages complained of: errors, and messages of these kinds that
    they wrote to the console; None for all. The pages are closed at the end."""
    complaints, contexts = [], []

    def heard(message):
        if kinds is None or message.type in kinds:
            complaints.append(message.text)

    def new_page(width="desk", **options):
        wide, tall = WIDTHS[width]
        context = chromium.new_context(viewport={"width": wide, "height": tall}, **options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(EIGHT_S)
        page.on("console", heard)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        return page

    yield new_page, complaints
    for context in contexts:
        context.close()
