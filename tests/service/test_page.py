"""The page in a real browser: with the mouse, by keyboard, in dark mode, and as wide as a phone."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from fake_machines import HERE, machines, onnx_bytes
from listening_service import listening
from measured_graphs import FAST, SLOW

from nni_latency.database import DatabaseStore
from nni_latency.query import LatencyQuery
from nni_latency.service import LatencyService

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

CHROMIUM = shutil.which("chromium")

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium")

#: Where pictures are kept, for whoever wants to look at them.
PICTURES = os.environ.get("NNI_LATENCY_SCREENSHOTS")


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as running:
        opened = running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def address(tmp_path_factory, predictor):
    store = DatabaseStore(str(tmp_path_factory.mktemp("page") / "m.sqlite"))
    service = LatencyService(LatencyQuery(store, machines=machines()[0], predictors={"graph": predictor}))
    with listening(service) as url:
        yield url
    store.close()


def _is_problem(said):
    """Whether a browser notes anything but a file that the service refuses."""
    return said.type == "error" and "status of 422" not in said.text


@pytest.fixture
def page(browser, address):
    """Open the page; nothing may go wrong in it, and nothing may be loaded from elsewhere."""
    context = browser.new_context()
    opened = context.new_page()
    problems = []
    opened.on("pageerror", lambda error: problems.append(str(error)))
    opened.on("console", lambda said: problems.append(said.text) if _is_problem(said) else None)
    opened.on("request", lambda asked: asked.url.startswith(address) or problems.append(asked.url))
    opened.goto(address)
    yield opened
    context.close()
    assert problems == []


@pytest.fixture
def files(tmp_path):
    """Save two networks."""
    found = []
    for name, channels in (("small", 6), ("large", 24)):
        path = tmp_path / f"{name}.onnx"
        path.write_bytes(onnx_bytes(channels))
        found.append(str(path))
    return found


def _picture(page, name):
    if PICTURES:
        page.screenshot(path=str(Path(PICTURES) / f"service-{name}.png"), full_page=True)


def _has_no_scrollbar(page):
    return page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")


@pytest.mark.slow
def test_a_network_is_shown_on_every_platform_and_measured(page, files):
    page.set_input_files("#file-a", files[0])
    page.wait_for_selector("#chart .row")
    shown = page.inner_text("#chart")
    assert all(platform in shown for platform in (HERE.id, FAST.id, SLOW.id))
    assert "predicted by graph" in shown
    page.wait_for_selector("#operators table")
    assert page.locator("#operators tbody tr").count() >= 3
    page.get_by_role("button", name="Measure").click()
    page.wait_for_selector("#chart .bar.measured")
    assert "measured 2" in page.inner_text("#chart")
    assert "repeatability" in page.inner_text("#chart")
    _picture(page, "ask")


@pytest.mark.slow
def test_two_networks_are_compared(page, files):
    for place, (slot, path) in enumerate(zip("ab", files, strict=True), 1):
        page.set_input_files(f"#file-{slot}", path)
        page.wait_for_selector(f"#networks p:nth-child({place})")
    page.wait_for_selector("#operators .scroll:nth-child(2) table")
    row = page.locator("#chart .row", has_text=FAST.id)
    assert row.locator(".bar").count() == 2
    assert "small.onnx: " in row.inner_text()
    assert "large.onnx: " in row.inner_text()
    _picture(page, "compare")


@pytest.mark.slow
def test_what_is_no_network_is_said(page, tmp_path):
    (tmp_path / "broken.onnx").write_bytes(b"not a network")
    page.set_input_files("#file-a", str(tmp_path / "broken.onnx"))
    page.wait_for_selector("#said.bad")
    assert "'broken.onnx' is not an ONNX file that can be read" in page.inner_text("#said")


def test_lists_are_reached_by_keyboard(page):
    for _ in range(20):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.hash") == "#records":
            break
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
    page.keyboard.press("Enter")
    page.wait_for_selector("#records:not([hidden]) .list > *")
    assert page.locator("nav a[aria-current]").inner_text() == "Records"
    for name in ("platforms", "jobs", "predictors"):
        page.goto(page.url.split("#")[0] + f"#{name}")
        page.wait_for_selector(f"#{name}:not([hidden]) .list > *")
        _picture(page, name)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_shows_it_without_a_scrollbar(browser, address, files, scheme):
    context = browser.new_context(viewport={"width": 360, "height": 740}, color_scheme=scheme)
    page = context.new_page()
    page.goto(address)
    page.set_input_files("#file-a", files[0])
    page.wait_for_selector("#operators table")
    assert _has_no_scrollbar(page)
    colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(int(part) for part in colour[4:-1].split(",")) < 200) == (scheme == "dark")
    _picture(page, f"phone-{scheme}")
    context.close()
