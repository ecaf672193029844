# SPDX-License-Identifier: Apache-2.0
"""`load_connection` and `load_remote`: other devices, and other machines that measure."""

from __future__ import annotations

import re
from collections.abc import Callable

import nni_latency.devices as devices
import nni_latency.measurement as measurement
from nni_latency.errors import InvalidValueError, UnknownNameError
from nni_latency.files import naming
from nni_latency.plugins import load_registry


def load_connection(source: str) -> devices.Connection:
    """Make the connection to a device. Nothing is opened before it is used.

    Parameters
    ----------
    source : str
        The name of a registered connection and an address, such as ``ssh:pi@raspberrypi``, ``adb`` or
        ``python:/opt/other/bin/python``; or a name of the file `nni_latency.devices.devices_file`.

    Raises
    ------
    InvalidValueError
        If the address is none.
    UnknownNameError
        If there is no connection and no device of that name.
    FileFormatError
        If the file of devices cannot be read.
    PluginError
        If a plugin fails to make it.

    Examples
    --------
    >>> load_connection("ssh:pi@raspberrypi").description
    'ssh:pi@raspberrypi'
    """
    registered = load_registry().connections
    name, _, address = source.partition(":")
    if name in registered:
        made: devices.Connection = registered[name].make(address)
        return made
    _check_kind(source)
    known = devices.read_devices()
    if source not in known:
        names = ", ".join(known) or "none so far"
        raise UnknownNameError(
            f"There is no device {source!r}. A device is ssh:USER@HOST, adb, adb:SERIAL, python:PATH, or a name of "
            f"{str(devices.devices_file())!r}: {names}."
        )
    device = known[source]
    with naming(devices.devices_file()):
        if device.connection.partition(":")[0] not in registered:
            raise InvalidValueError(
                f"The device {source!r} must have a connection such as ssh:pi@raspberrypi, with one of "
                f"{', '.join(registered)} in front. Got {device.connection!r}."
            )
        connection = load_connection(device.connection)
    if device.python:
        connection.python = device.python
    connection.cores = device.cores
    connection.reached_as, connection.description = connection.description, source
    return connection


def _check_kind(source: str) -> None:
    """Raise `UnknownNameError` if a device is a user and a host without the kind of connection."""
    if re.fullmatch(r"[^\s:/@]+@[^\s:/@]+(:\d+)?", source) is not None:
        raise UnknownNameError(f"There is no device {source!r}. To reach it by SSH, give ssh:{source}")


def connection_of(device: str) -> devices.Connection | None:
    """Return the connection to a device; None for ``cpu``, ``cuda``, ``cuda:N``, and what names no connection.

    Raises
    ------
    LatencyError
        As for `load_connection`, and for a user and a host without the kind of connection.

    Examples
    --------
    >>> connection_of("ssh:pi@raspberrypi").description
    'ssh:pi@raspberrypi'
    >>> connection_of("cuda:0") is None
    True
    """
    name = device.partition(":")[0]
    if name in ("cpu", "cuda"):
        return None
    if name in load_registry().connections:
        return load_connection(device)
    _check_kind(device)
    return load_connection(device) if device in devices.read_devices() else None


def load_remote(source: str, on_wait: Callable[[str], None] = lambda _sentence: None) -> measurement.Remote:
    """Reach other machines that measure or fit.

    Parameters
    ----------
    source : str
        The name of what reaches them and their address, such as ``farm:tcp://127.0.0.1:8786``.
    on_wait : callable, optional
        Called with a sentence when a machine is waited for.

    Raises
    ------
    InvalidValueError
        If it is not of this form.
    UnknownNameError
        If no plugin registers the name.
    RemoteError
        If nobody answers at the address.
    """
    name, _, address = source.partition(":")
    if not (name and address):
        raise InvalidValueError(
            f"Other machines are given as NAME:ADDRESS, such as farm:tcp://127.0.0.1:8786. Got {source!r}."
        )
    made: measurement.Remote = load_registry().find("remote", name).make(address, on_wait)
    return made
