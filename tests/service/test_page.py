# SPDX-License-Identifier: Apache-2.0
"""The page in a real browser: with the mouse, by keyboard, in dark mode, and as wide as a phone."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from fake_machines import HERE, machines, onnx_bytes
from listening_service import listening
from measured_graphs import FAST, SLOW
from nni_latency_service import LatencyService
from nni_latency_service.query import LatencyQuery, LocalMachines

from nni_latency.database import DatabaseStore, PredictorVersion, add_predictor
from nni_latency.measurement import CampaignHeader, Protocol, Record, Subject, WorkerState

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

CHROMIUM = shutil.which("chromium")

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium")

#: Longest wait for anything in the browser [ms]: a busy machine draws slowly.
_PATIENCE = 180_000

#: For root, and for containers whose shared memory is small.
_OPTIONS = ["--no-sandbox", "--disable-dev-shm-usage"]

#: Where pictures are kept, for whoever wants to look at them.
PICTURES = os.environ.get("NNI_LATENCY_SCREENSHOTS")


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as running:
        opened = running.chromium.launch(executable_path=CHROMIUM, args=_OPTIONS, timeout=_PATIENCE)
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def address(tmp_path_factory, predictor):
    store = DatabaseStore(str(tmp_path_factory.mktemp("page") / "m.sqlite"))
    service = LatencyService(LatencyQuery(store, machines=machines()[0], predictors={"graph": predictor}))
    with listening(service) as url:
        yield url
    store.close()


def _context(browser, **options):
    context = browser.new_context(**options)
    context.set_default_timeout(_PATIENCE)
    return context


def _is_problem(said):
    """Whether a browser notes anything but a file that the service refuses."""
    return said.type == "error" and "status of 422" not in said.text


@pytest.fixture
def page(browser, address):
    """Open the page; nothing may go wrong in it, and nothing may be loaded from elsewhere."""
    context = _context(browser)
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
    # What can be measured comes first.
    assert shown.startswith(HERE.id)
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
    # Chart and operators are drawn by answers of their own.
    row.locator(".bar").nth(1).wait_for(state="attached")
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


@pytest.fixture(scope="module")
def history(tmp_path_factory):
    """Serve a database that knows how fast a platform was, and versions of two predictors; with workers of a farm."""
    store = DatabaseStore(str(tmp_path_factory.mktemp("history") / "m.sqlite"))
    for number, reference in enumerate((1.0e-3, 1.1e-3, 1.6e-3)):
        header = CampaignHeader("query", {"subject": str(number)}, HERE, Protocol())
        with store.campaign(header) as log:
            log.admit(Subject("a", dict, (1,), "network", f"net {number}"))
            log.append(Record(reference, (), {"latency": (1e-3,)}, ("a",), 0, 0, 0.1, 1.7e9))
    for name, errors in (("evolving", (0.2, 0.3)), (f"evolving:{HERE.id}", (0.1,))):
        for number, error in enumerate(errors):
            told = {"all": error, **({"before": 0.2} if number else {})}
            version = PredictorVersion(name, 0, 1.7e9, "1", 40, 9, 100 + number, told, number == 0)
            add_predictor(store.database, version, b"")
    machines_there = FarmOfStates(
        [
            WorkerState("left", "a", HERE.id, "ready", slower=1.02),
            WorkerState("right", "b", HERE.id, "quarantined", "Its reference networks take 40.0 % longer.", slower=1.4),
        ]
    )
    service = LatencyService(LatencyQuery(store, machines=machines_there))
    with listening(service) as url:
        yield url
    store.close()


class FarmOfStates(LocalMachines):
    """Machines of a farm that measure nothing."""

    def __init__(self, states):
        super().__init__([])
        self._states = states

    def workers(self):
        """Return the states."""
        return self._states


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1100])
def test_drift_and_history_are_drawn(browser, history, scheme, width):
    context = _context(browser, viewport={"width": width, "height": 800}, color_scheme=scheme)
    page = context.new_page()
    problems = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto(f"{history}#platforms")
    page.wait_for_selector("#drift .plot")
    (label,) = [item.get_attribute("aria-label") for item in page.query_selector_all("#drift .plot")]
    assert label.startswith(f"{HERE.id}: 1.6 ms on ")
    assert "60.0\u00a0% longer than at best, in 3 campaigns" in label
    assert page.inner_text("#drift").endswith(": it drifts")
    assert page.locator("#drift .dot.bad").count() == 1
    assert page.locator("#drift .dot.usual").count() == 2
    page.wait_for_selector("#workers table")
    workers = page.inner_text("#workers")
    assert "40.0\u00a0% longer than at best" in workers
    assert "Its reference networks take 40.0 % longer." in workers
    assert _has_no_scrollbar(page)
    _picture(page, f"drift-{width}-{scheme}")
    page.goto(f"{history}#predictors")
    page.wait_for_selector("#versions table")
    shown = page.inner_text("#history")
    assert "has learned from 40, and is off by 20.0\u00a0% on 9 others; 2 versions so far" in shown
    assert page.locator("#history .plot").count() == 2
    assert page.locator("#history .dot.ring").count() == 1
    assert page.locator("#versions tbody tr").count() == 3
    assert _has_no_scrollbar(page)
    _picture(page, f"history-{width}-{scheme}")
    context.close()
    assert problems == []


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_shows_it_without_a_scrollbar(browser, address, files, scheme):
    context = _context(browser, viewport={"width": 360, "height": 740}, color_scheme=scheme)
    page = context.new_page()
    page.goto(address)
    page.set_input_files("#file-a", files[0])
    page.wait_for_selector("#operators table")
    assert _has_no_scrollbar(page)
    colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(int(part) for part in colour[4:-1].split(",")) < 200) == (scheme == "dark")
    _picture(page, f"phone-{scheme}")
    context.close()
