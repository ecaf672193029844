"""Lazy exports and optional packages."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

from nni_latency.errors import MissingDependencyError
from nni_latency.imports import lazy_exports, require


def test_require_returns_the_module():
    assert require("json.decoder", "The test", "json").__name__ == "json.decoder"


def test_require_says_what_to_install():
    with pytest.raises(MissingDependencyError, match=r"The test needs the package 'no_such_thing'.*install 'thing>=1'"):
        require("no_such_thing.part", "The test", "thing>=1")


def test_lazy_exports_loads_on_first_use(tmp_path, monkeypatch):
    (tmp_path / "lazy_sample.py").write_text(
        "from nni_latency.imports import lazy_exports\n"
        "__getattr__, __dir__ = lazy_exports(__name__, {'thing': 'lazy_sample_part'})\n"
    )
    (tmp_path / "lazy_sample_part.py").write_text("thing = 7\n")
    monkeypatch.syspath_prepend(tmp_path)
    sample = importlib.import_module("lazy_sample")
    assert "lazy_sample_part" not in sys.modules
    assert sample.thing == 7
    assert "lazy_sample_part" in sys.modules


def test_lazy_exports_lists_its_names():
    _, directory = lazy_exports("json", {"b": "x", "a": "y"})
    assert directory() == ["a", "b"]


def test_lazy_exports_refuses_other_names():
    getattribute, _ = lazy_exports("json", {"a": "y"})
    with pytest.raises(AttributeError, match=r"module 'json' has no attribute 'b'"):
        getattribute("b")


def test_importing_the_package_loads_neither_torch_nor_nni():
    code = "import sys, nni_latency; print(sorted({'torch', 'nni', 'numpy', 'pydantic'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_public_name_is_there():
    package = importlib.import_module("nni_latency")
    assert sorted(package.__all__) == package.__dir__()
    assert all(getattr(package, name).__name__ for name in package.__all__ if name != "hookimpl")
