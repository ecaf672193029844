# SPDX-License-Identifier: Apache-2.0
"""Other machines as a plugin reaches them: what commands do with them, and what is said of a plugin that errs."""

from __future__ import annotations

import pytest

from nni_latency.errors import InvalidValueError, MeasurementError, PluginError, RemoteError, UnknownNameError
from nni_latency.loading import load_remote
from nni_latency.measurement import Remote
from nni_latency.platforms import Platform
from nni_latency.plugins import Registration, Registry
from nni_latency.testing import FakeDevice


class _Lab(Remote):
    """Devices in this process, which stand for those of a lab."""

    def __init__(self, address, on_wait, devices=("pi", "mac")):
        self.description, self.devices, self.closed = f"lab {address}", devices, False
        on_wait(f"Waiting for {address}.")

    def runtimes(self):
        return [FakeDevice(name) for name in self.devices]

    def close(self):
        self.closed = True


@pytest.fixture
def registered(monkeypatch):
    """Register what a plugin of the name ``theirs`` opens under the name ``lab``."""

    def register(factory=_Lab):
        registry = Registry(remotes={"lab": Registration("lab", factory, "theirs", "remote")})
        monkeypatch.setattr("nni_latency.loading._connections.load_registry", lambda: registry)

    return register


def test_machines_are_reached_by_name_and_address(registered):
    registered()
    said = []
    with load_remote("lab:tcp://10.0.0.1:5", said.append) as lab:
        assert lab.description == "lab tcp://10.0.0.1:5"
        assert said == ["Waiting for tcp://10.0.0.1:5."]
        assert lab.runtime("mac.fake.fp32.t1").platform == lab.runtime(Platform("mac", "fake")).platform
        assert not lab.workers()
    assert lab.closed


def test_what_the_machines_do_not_have_is_said(registered):
    registered()
    lab = load_remote("lab:here")
    with pytest.raises(UnknownNameError, match=r"Unknown platform 'nas.fake.fp32.t1'. .*mac.fake.fp32.t1, pi.fake"):
        lab.runtime("nas.fake.fp32.t1")
    with pytest.raises(MeasurementError, match=r"The machines of lab here read no energy. A power can be assumed"):
        lab.meter("mac.fake.fp32.t1")
    with pytest.raises(RemoteError, match=r"The machines of lab here fit no predictors"):
        lab.fitting()


@pytest.mark.parametrize("text", ["lab", "lab:", ":here", ""])
def test_machines_without_name_or_address_are_refused(registered, text):
    registered()
    with pytest.raises(InvalidValueError, match=r"Other machines are given as NAME:ADDRESS, such as farm:tcp"):
        load_remote(text)


class _Wrong(_Lab):
    def runtimes(self):
        return [0.5]


class _Failing(_Lab):
    def runtimes(self):
        return {}["pi"]


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (_Wrong, r"The remote 'lab' of the plugin 'theirs' must return a list of Runtime from 'runtimes'\. Got list"),
        (_Failing, r"The remote 'lab' of the plugin 'theirs' failed in 'runtimes': KeyError: 'pi'"),
    ],
)
def test_wrong_answer_of_a_plugin_is_named(registered, kind, message):
    registered(kind)
    with pytest.raises(PluginError, match=message):
        load_remote("lab:here").runtimes()


def test_what_is_no_remote_is_named(registered):
    registered(lambda address, on_wait: 0.5)
    with pytest.raises(PluginError, match=r"The plugin 'theirs' must make a Remote for 'lab'\. Got float"):
        load_remote("lab:here")
