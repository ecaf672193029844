# SPDX-License-Identifier: Apache-2.0
"""Pictures of the page of a service that runs, as the documentation shows them.

    nni-latency serve --platform onnxruntime,openvino
    python examples/service_pictures.py http://127.0.0.1:8765 small.onnx large.onnx --out pictures

They are taken by playwright in Debian's Chromium: wide in light colours, and as narrow as a phone in dark ones. Nothing
is measured for them.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

#: Size of the window, and the colours, by the ending of the file's name.
WINDOWS: dict[str, dict[str, Any]] = {
    "": {"viewport": {"width": 1000, "height": 900}, "color_scheme": "light"},
    "-phone": {"viewport": {"width": 380, "height": 740}, "color_scheme": "dark"},
}


def main() -> None:
    """Take all pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", help="address of the service")
    parser.add_argument("networks", nargs="+", help="one or two ONNX files that are compared")
    parser.add_argument("--out", type=Path, default=Path("pictures"), help="folder of the pictures")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as running:
        browser = running.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for ending, window in WINDOWS.items():
            page = browser.new_context(device_scale_factor=1.5, **window).new_page()
            for name, show in (("compare", _compare), ("platforms", _platforms), ("predictors", _predictors)):
                show(page, options)
                out = options.out / f"service-{name}{ending}.png"
                # The operators of two networks are a long list: that picture ends with the window's last whole row.
                part = {"clip": _upper_part(page)} if name == "compare" else {"full_page": True}
                page.screenshot(path=str(out), **part)
                print(f"Wrote {out}")
        browser.close()


def _compare(page: Any, options: argparse.Namespace) -> None:
    page.goto(options.url)
    for place, (slot, network) in enumerate(zip("ab", options.networks, strict=False), 1):
        page.set_input_files(f"#file-{slot}", network)
        page.wait_for_selector(f"#networks p:nth-child({place})")
    page.wait_for_selector("#chart .row")
    page.wait_for_timeout(1000)


def _upper_part(page: Any) -> dict[str, float]:
    """Return the part of the window down to the last row of the chart that it shows whole."""
    ends = page.eval_on_selector_all("#chart .row", "rows => rows.map(row => row.getBoundingClientRect().bottom)")
    width, height = page.viewport_size["width"], page.viewport_size["height"]
    return {"x": 0, "y": 0, "width": width, "height": max(end for end in ends if end <= height)}


def _platforms(page: Any, options: argparse.Namespace) -> None:
    page.goto(f"{options.url}#platforms")
    page.wait_for_selector("#drift > *")
    page.wait_for_selector("#workers > *")


def _predictors(page: Any, options: argparse.Namespace) -> None:
    page.goto(f"{options.url}#predictors")
    page.wait_for_selector("#versions > *")


if __name__ == "__main__":
    main()
