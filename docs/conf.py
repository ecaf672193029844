# SPDX-License-Identifier: Apache-2.0
"""How Sphinx builds the documentation."""

import json
import sys
import warnings
from importlib import metadata
from pathlib import Path

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.util.docutils import SphinxDirective

# The extensions of this folder.
sys.path.insert(0, str(Path(__file__).parent))

# NNI wraps every class of torch.nn and reports those that are newer than itself and no modules.
warnings.filterwarnings(
    "ignore", message=r".*is found to be not a nn\.Module, which is unexpected.*", category=RuntimeWarning
)

project = "nni_latency"
author = "the nni_latency developers"
copyright = "the nni_latency developers, Apache License 2.0"
release = metadata.version("nni_latency")
version = release

extensions = [
    "sphinx.ext.autodoc",
    "numpydoc",
    "command_pages",
    "mathml",
]
exclude_patterns = ["_build"]
default_role = "py:obj"

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
# What NNI, Lightning and torch say of their own methods is theirs to print.
autodoc_inherit_docstrings = False
numpydoc_show_class_members = False
numpydoc_class_members_toctree = False

html_theme = "furo"
html_math_renderer = "mathml"
html_title = f"nni_latency {release}"
html_static_path = ["_static"]
html_css_files = ["custom.css"]


class Notebook(SphinxDirective):
    """``.. notebook:: FILE`` shows the cells of a notebook: text without headings, code, and its text outputs."""

    required_arguments = 1

    def run(self):
        """Return one node after another."""
        path = Path(self.env.srcdir) / self.arguments[0]
        self.env.note_dependency(path)
        shown = []
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            source = "".join(cell["source"])
            if cell["cell_type"] == "code":
                shown.append(nodes.literal_block(source, source, language="python"))
                if output := "".join(map(_text_of, cell["outputs"])).rstrip():
                    shown.append(nodes.literal_block(output, output, language="text", classes=["output"]))
            else:
                text = nodes.Element()
                lines = [line for line in source.splitlines() if not line.startswith("#")]
                self.state.nested_parse(StringList(lines, str(path)), 0, text)
                shown += text.children
        return shown


def _text_of(output):
    """Return the text of an output of a cell; pictures and HTML have none."""
    return "".join(output.get("text") or output.get("data", {}).get("text/plain", ""))


def setup(app):
    """Add the directive."""
    app.add_directive("notebook", Notebook)
    return {"parallel_read_safe": True}
