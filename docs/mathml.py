# SPDX-License-Identifier: Apache-2.0
"""Formulas as MathML, written when the pages are built: a reader needs no script and no network."""

from __future__ import annotations

from typing import Any

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.writers.html5 import HTML5Translator


def _inline(translator: HTML5Translator, node: nodes.math) -> None:
    translator.body.append(tex2mathml(node.astext()))
    raise nodes.SkipNode


def _block(translator: HTML5Translator, node: nodes.math_block) -> None:
    formula = tex2mathml(node.astext(), as_block=True)
    # Exponents reach out of the box where the font is not made for formulas; with room for them nothing scrolls.
    before = translator.starttag(node, "div", CLASS="math", STYLE="padding: 0.5em 0")
    translator.body.append(f"{before}{formula}</div>\n")
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, Any]:
    """Add the renderer, which ``html_math_renderer`` chooses."""
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
