# SPDX-License-Identifier: Apache-2.0
"""Who is let in: addresses, refusals, tokens, certificates."""

from __future__ import annotations

import asyncio
import time

import nni_latency_farm as farm
import pytest
from nni_latency_farm.testing import FarmOfProcesses

from nni_latency.errors import InvalidValueError, RemoteError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("localhost", "tcp://localhost:8786"),
        ("tcp://10.0.0.7:1", "tcp://10.0.0.7:1"),
        ("tls://farm.example.org", "tls://farm.example.org:8786"),
        ("tcp://[::1]:9", "tcp://[::1]:9"),
    ],
)
def test_addresses_are_read(text, expected):
    assert str(farm.FarmAddress.parse(text)) == expected


@pytest.mark.parametrize(
    "text", ["", "http://x:1", "tcp://", "tcp://x:y", "tcp://x:99999", "x:1/y", "tcp://u@x:1", "x:1#pi"]
)
def test_what_is_no_address_is_refused(text):
    with pytest.raises(InvalidValueError, match="The address of a farm must be a host and a port"):
        farm.FarmAddress.parse(text)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "8.8.8.8"])
def test_a_farm_that_others_reach_needs_certificate_and_token(host, make_token):
    for security in (farm.FarmSecurity(), farm.FarmSecurity(token_file=make_token())):
        with pytest.raises(RemoteError, match="who reaches it can run code there: give a TLS certificate"):
            farm.serve(host, 0, security)
    with pytest.raises(RemoteError, match="can be reached from other machines"):
        farm.Farm("8.8.8.8:1")


def test_a_certificate_alone_is_not_enough(make_certificate):
    with pytest.raises(RemoteError, match="and a token"):
        farm.serve("0.0.0.0", 0, farm.FarmSecurity(*make_certificate("alone")))


def test_an_address_with_tls_needs_a_certificate():
    with pytest.raises(RemoteError, match="needs a TLS certificate and its key"):
        farm.Farm("tls://127.0.0.1:1")


def test_certificate_and_key_belong_together(tmp_path):
    with pytest.raises(InvalidValueError, match="give both, or neither"):
        farm.FarmSecurity(cert=tmp_path / "farm.crt")


def test_files_that_are_no_certificates_are_refused(tmp_path):
    for name in ("farm.crt", "farm.key"):
        (tmp_path / name).write_text("nothing")
    with pytest.raises(RemoteError, match="are no TLS certificate and its key in PEM"):
        farm.Farm("tls://127.0.0.1:1", farm.FarmSecurity(tmp_path / "farm.crt", tmp_path / "farm.key"))
    with pytest.raises(RemoteError, match="Cannot read"):
        farm.Farm("tls://127.0.0.1:1", farm.FarmSecurity(tmp_path / "no.crt", tmp_path / "no.key"))


def test_a_token_that_others_can_read_is_refused(make_token):
    path = make_token()
    path.chmod(0o644)
    with pytest.raises(RemoteError, match=r"can be used by others\. Run: chmod 600"):
        farm.FarmSecurity(token_file=path).token()


def test_a_short_token_is_refused(make_token):
    with pytest.raises(RemoteError, match="has 6 characters, and 16 are the fewest"):
        farm.FarmSecurity(token_file=make_token(text="secret")).token()
    with pytest.raises(RemoteError, match="Cannot read the token file"):
        farm.FarmSecurity(token_file=make_token().with_name("none")).token()


@pytest.mark.slow
def test_a_farm_with_token_lets_in_who_has_it_and_nobody_else(tmp_path, make_token):
    right = farm.FarmSecurity(token_file=make_token())
    with FarmOfProcesses(tmp_path, security=right) as processes:
        processes.join("worker")
        with processes.client() as client:
            processes.wait_for(1, client)
            (found,) = client.platforms()
            with client.benches(found.platform).open(farm_protocol()) as bench:
                assert bench is not None
        for wrong in (None, farm.FarmSecurity(token_file=make_token("other.token"))):
            with pytest.raises(RemoteError, match="it does not trust this side"):
                farm.Farm(processes.address, wrong, timeout=3)


def farm_protocol():
    from nni_latency.measurement import Protocol

    return Protocol()


@pytest.mark.slow
def test_nothing_is_read_of_who_does_not_prove_the_token(tmp_path, make_token):
    """What arrives before the proof is never unpacked: the line is closed."""

    async def speak(port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        challenge = await reader.readexactly(32)
        writer.write(b"\x00" * 4096)
        await writer.drain()
        rest = await reader.read()
        writer.close()
        return challenge, rest

    with FarmOfProcesses(tmp_path, security=farm.FarmSecurity(token_file=make_token())) as processes:
        port = farm.FarmAddress.parse(processes.address).port
        begin = time.monotonic()
        first, rest = asyncio.run(speak(port))
        second, _ = asyncio.run(speak(port))
        took = time.monotonic() - begin
    assert rest == b""
    assert first != second
    # A proof is waited for as long.
    assert took < 10


def test_tls_lets_in_who_has_the_certificate_and_nobody_else(tmp_path, make_token, make_certificate):
    token = make_token()
    right = farm.FarmSecurity(*make_certificate("farm"), token_file=token)
    with FarmOfProcesses(tmp_path, security=right) as processes:
        assert processes.address.startswith("tls://")
        processes.join("worker")
        with processes.client() as client:
            processes.wait_for(1, client)
            assert client.workers()[0].address.startswith("tls://")
        wrong = farm.FarmSecurity(*make_certificate("another"), token_file=token)
        for security in (wrong, farm.FarmSecurity(token_file=token)):
            with pytest.raises(RemoteError):
                farm.Farm(processes.address, security, timeout=3)


@pytest.mark.slow
def test_a_worker_of_a_local_farm_listens_on_this_machine_alone(processes):
    processes.join("worker")
    with processes.client() as client:
        processes.wait_for(1, client)
        assert client.workers()[0].address.startswith("tcp://127.0.0.1:")
