# SPDX-License-Identifier: Apache-2.0
"""Whether the pages of the documentation fit a screen, in Chromium, with a window of 1,280 and of 390 pixels.

    make docs
    python examples/pages_fit.py

On every page nothing may be wider than the window, and no code may be cut off or need scrolling. Only in the window of
390 may what a command printed scroll, because its columns do not survive a line break. Tables that are too wide scroll
inside of their box, and letters in pictures are at least 9 pixels high in a window of 1,280: every picture is drawn for
the 736 pixels that it is shown with, and may not be shown smaller there.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

#: Widths of the window.
WIDTHS = (1280, 390)

#: Width of a text, for which pictures are drawn.
SHOWN = 736

#: Returns what is wrong with a page.
LOOK = """
shown => {
  const wrong = [], page = document.documentElement;
  const say = (item, what) => wrong.push(`${what}: ${(item.innerText || item.src || "").trim().slice(0, 60)}`);
  if (page.scrollWidth > page.clientWidth) wrong.push(`${page.scrollWidth} px wide`);
  const scrollable = item => getComputedStyle(item).overflowX === "auto";
  const scrolls = item => item && (scrollable(item) || scrolls(item.parentElement));
  const wide = page.clientWidth > 1200, printed = item => item.closest(".highlight-none") || item.querySelector(".go");
  for (const item of document.querySelectorAll("article pre"))
    if (item.scrollWidth > item.clientWidth && (wide || !printed(item) || !scrollable(item)))
      say(item, "code is cut off");
  for (const item of document.querySelectorAll("article table"))
    if (item.getBoundingClientRect().right > page.clientWidth && !scrolls(item.parentElement))
      say(item, "table is cut off");
  for (const item of document.querySelectorAll("article img")) {
    const box = item.getBoundingClientRect();
    if (box.right > page.clientWidth + 1) say(item, "picture is cut off");
    if (!item.naturalWidth) say(item, "picture is missing");
    if (wide && box.width < shown - 1 && item.naturalWidth >= shown) say(item, "picture is small");
  }
  return wrong;
}
"""


def main() -> None:
    """Look at all pages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="?", type=Path, default=Path("docs/_build/html"), help="folder of the pages")
    parser.add_argument("--pictures", type=Path, help="folder for a picture of every page at both widths")
    options = parser.parse_args()
    pages = sorted(options.pages.rglob("*.html"))
    if not pages:
        sys.exit(f"There are no pages in {options.pages}. Run 'make docs' before.")
    problems = look_at(pages, options.pages, options.pictures)
    for problem in problems:
        print(problem)
    print(f"{len(pages)} pages at {' and '.join(map(str, WIDTHS))} px: {len(problems) or 'no'} problems")
    sys.exit(bool(problems))


def look_at(pages: list[Path], root: Path, pictures: Path | None) -> list[str]:
    """Return what is wrong, page by page."""
    found = []
    with sync_playwright() as running:
        browser = running.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for width in WIDTHS:
            page: Any = browser.new_context(viewport={"width": width, "height": 900}).new_page()
            # Nothing that lies elsewhere is waited for.
            page.route("http*://**", lambda route: route.abort())
            for path in pages:
                page.goto(path.resolve().as_uri())
                name = path.relative_to(root).as_posix()
                found += [f"{name} at {width} px: {problem}" for problem in page.evaluate(LOOK, SHOWN)]
                if pictures is not None:
                    pictures.mkdir(parents=True, exist_ok=True)
                    out = pictures / f"{name.replace('/', '-').removesuffix('.html')}-{width}.png"
                    page.screenshot(path=str(out), full_page=True)
        browser.close()
    return found


if __name__ == "__main__":
    main()
