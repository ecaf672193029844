# SPDX-License-Identifier: Apache-2.0
"""The gallery of the documentation: every picture is in it, and every command of it draws."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest
from PIL import Image

import nni_latency.plots

# Private: what every picture is made of.
from nni_latency.plots._canvas import STYLE

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "gallery.rst").read_text(encoding="utf-8")


def test_every_function_that_draws_is_in_the_gallery():
    drawing = {name for name in nni_latency.plots.__all__ if name.startswith("draw_")}
    assert drawing == set(re.findall(r"``(draw_\w+)``", PAGE))


def test_pictures_are_those_that_the_commands_write():
    shown = set(re.findall(r"\.\. image:: images/gallery/(\w+\.(?:png|svg))", PAGE))
    assert shown == {path.name for path in (ROOT / "docs" / "images" / "gallery").iterdir()}
    commands = runpy.run_path(str(ROOT / "examples" / "gallery.py"))["commands"]()
    written = {word for command in commands for word in command if word.endswith((".png", ".svg"))}
    # A search names its picture itself.
    assert shown == written | {"search.png"}


def test_pictures_are_drawn_for_the_width_at_which_they_are_shown():
    """736 px, and the smallest letters of 9 px; twice as many pixels for sharp screens."""
    for path in (ROOT / "docs" / "images" / "gallery").iterdir():
        if path.suffix == ".svg":
            width = re.search(r'<svg [^>]*width="([\d.]+)pt"', path.read_text(encoding="utf-8"))
            assert float(width[1]) * 96 / 72 == pytest.approx(736), path.name
        else:
            with Image.open(path) as picture:
                assert picture.size[0] == 2 * 736, path.name
    assert min(size for name, size in STYLE.items() if name.endswith("size") and "marker" not in name) * 96 / 72 >= 9


def test_page_shows_pictures_on_the_first_page():
    first = (ROOT / "docs" / "index.rst").read_text(encoding="utf-8")
    shown = re.findall(r"\.\. (?:image|figure):: (images/[\w.]+)", first)
    assert {"images/concept.svg", "images/validation.png"} == set(shown)
    assert all((ROOT / "docs" / path).is_file() for path in shown)
