# SPDX-License-Identifier: Apache-2.0
"""Commands that measure on the machines of a plugin."""

from __future__ import annotations

import pytest
from tiny import TINY_OPTIONS

from nni_latency.measurement import Remote
from nni_latency.plugins import Registration, Registry, load_registry
from nni_latency.tables import LookupTable
from nni_latency.testing import FakeDevice


class _Lab(Remote):
    advice = "Switch one on."

    def __init__(self, address, on_wait):
        self.description, self.devices = f"lab {address}", [name for name in address.split(",") if name != "none"]

    def runtimes(self):
        return [FakeDevice(name) for name in self.devices]

    def close(self):
        pass


@pytest.fixture(autouse=True)
def _lab(monkeypatch):
    """Register the machines ``lab:DEVICE,DEVICE``."""
    registry = load_registry()
    remotes = {"lab": Registration("lab", _Lab, "theirs", "remote")}
    made = Registry(spaces=registry.spaces, runtimes=registry.runtimes, meters=registry.meters, remotes=remotes)
    for place in ("loading._connections", "loading._estimators", "loading._runtimes", "spaces._finding"):
        monkeypatch.setattr(f"nni_latency.{place}.load_registry", lambda: made)


def test_a_table_is_built_on_the_machines_of_a_plugin(run):
    quick = ("--protocol", "rounds=1", "--budget", "60s", "--protocol", "half_width=0")
    run("build-lut", *TINY_OPTIONS, "--runtime", "fake", "--remote", "lab:pi", "--out", "table.json", *quick)
    assert LookupTable.load("table.json").platform.id == "pi.fake.fp32.t1"


@pytest.mark.parametrize(
    ("remote", "options", "said"),
    [
        (
            "lab:pi,mac",
            [],
            "The lab pi,mac has several platforms of this kind: mac.fake.fp32.t1, pi.fake",
        ),
        ("lab:none", [], "No machine of the lab none measures. Switch one on."),
        ("lab:pi", ["--threads", "2"], "measures with the runtime 'fake' in fp32 on 2 threads. Available: pi.fake"),
        ("lab:pi", ["--metric", "energy"], "The machines of lab pi read no energy."),
        ("lab:pi#pi.fake.fp32.t2", [], "Unknown platform 'pi.fake.fp32.t2'"),
        ("nowhere:x", [], "Unknown remote 'nowhere'. Available: lab."),
    ],
)
def test_what_the_machines_do_not_have_is_one_sentence(fails, remote, options, said):
    assert said in fails("build-lut", *TINY_OPTIONS, "--runtime", "fake", "--remote", remote, *options)


def test_fits_belong_to_no_platform(fails):
    said = fails("learn", "graph", "--from-database", "--remote", "lab:pi#pi.fake.fp32.t1")
    assert said == "Fits belong to no platform. Give --remote lab:pi alone."
    said = fails("learn", "graph", "--from-database", "--remote", "lab:pi")
    assert said.startswith("The machines of lab pi fit no predictors.")
