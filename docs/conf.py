"""How Sphinx builds the documentation."""

import warnings
from importlib import metadata

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
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
    "numpydoc",
]
templates_path = ["_templates"]
exclude_patterns = ["_build"]
default_role = "py:obj"

autosummary_generate = True
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
# What NNI, Lightning and torch say of their own methods is theirs to print.
autodoc_inherit_docstrings = False
numpydoc_show_class_members = False
numpydoc_class_members_toctree = False

html_theme = "furo"
html_title = f"nni_latency {release}"
