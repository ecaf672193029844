# SPDX-License-Identifier: Apache-2.0
"""``nni-latency farm``."""

from __future__ import annotations

import platform as machine
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

import nni_latency.loading as loading
import nni_latency.measurement as measurement
import nni_latency_farm as farm
from nni_latency.cli import (
    DURATION,
    Column,
    Grid,
    PlatformOptions,
    Report,
    ReportingCommand,
    grouped,
    make_runtime,
    option,
    print_report,
    remarks,
)
from nni_latency.errors import InvalidValueError, LatencyError
from nni_latency.units import format_percent

_TOKEN, _CERT, _KEY, _CA = farm.VARIABLES


@dataclass(frozen=True)
class SecurityOptions:
    """Who may speak to a farm."""

    token_file: Path | None = option("File of the secret that all machines of the farm have.", envvar=_TOKEN)
    tls_cert: Path | None = option("File of the TLS certificate, in PEM.", envvar=_CERT)
    tls_key: Path | None = option("File of its private key.", envvar=_KEY)
    tls_ca: Path | None = option(
        "File of the certificate that signed all others.  [default: the certificate itself]", envvar=_CA
    )

    def made(self) -> farm.FarmSecurity:
        """Return them as the library takes them."""
        if (self.tls_cert is None) != (self.tls_key is None):
            raise InvalidValueError("TLS needs a certificate and its private key: give --tls-cert and --tls-key.")
        return farm.FarmSecurity(self.tls_cert, self.tls_key, self.tls_ca, self.token_file)


@click.group("farm")
def farm_command() -> None:
    """Measure on several machines: run a scheduler, join it as a worker, see how it is doing."""


@farm_command.command("start")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8786, show_default=True, help="Port; 0 for any that is free."
)
@click.option(
    "--tolerance",
    type=click.FloatRange(0, min_open=True),
    default=0.25,
    show_default=True,
    help="Share by which reference networks may differ from earlier, or from twins, before a worker is quarantined.",
)
@grouped()
def start(host: str, port: int, tolerance: float, security: SecurityOptions) -> None:
    """Run the scheduler of a farm, until Ctrl-C.

    It measures nothing itself. Workers and clients must be able to reach it.
    """
    farm.serve(host, port, security.made(), tolerance=tolerance, on_start=_say_address, tell=_tell)
    _tell("Stopped. Workers look for the farm until it is back.")


def _say_address(address: str) -> None:
    click.echo(f"The farm listens at {address}")
    remarks().print(f"On each machine: nni-latency farm join {address} --runtime NAME --threads N", markup=False)
    remarks().print("Ctrl-C stops it.")


@farm_command.command("join")
@click.argument("address", metavar="URL")
@click.option("--name", help="Name of this worker.  [default: that of the machine, or of the device of --device]")
@click.option("--host", metavar="ADDRESS", help="Address to listen on.  [default: all, or 127.0.0.1 if the farm does]")
@click.option(
    "--check-every", type=DURATION, default="5min", show_default=True, help="How often reference networks are timed."
)
@click.option(
    "--meter",
    "meters",
    metavar="NAME[:ARGUMENT]",
    multiple=True,
    help="Meter of energy that is read here, as for build-lut; repeat for several.  "
    "[default: nvml or rapl, by the device, where it can be read]",
)
@grouped()
def join(
    address: str,
    name: str | None,
    host: str | None,
    check_every: float,
    meters: tuple[str, ...],
    platform: PlatformOptions,
    security: SecurityOptions,
) -> None:
    """Measure for a farm on this machine or another device, until Ctrl-C.

    The worker owns its device: no other worker of yours may have it, or one of its processors, at the same time. Bind
    workers to processors of their own with taskset. A device such as ssh:pi@raspberrypi is held for as long as the
    worker runs: no other process measures there meanwhile.
    """
    runtime = make_runtime(platform)
    is_elsewhere = loading.connection_of(platform.device) is not None
    farm.join(
        address,
        runtime,
        name=name or (platform.device if is_elsewhere else machine.node() or "worker"),
        device=platform.device,
        security=security.made(),
        host=host,
        check_every=check_every,
        meters=_meters(meters, platform.device),
        tell=_tell,
    )
    _tell("Left the farm.")


def _meters(names: tuple[str, ...], device: str) -> dict[str, measurement.Meter]:
    """Return the meters that can be read here, each opened once; one that is named and cannot be is an error."""
    if loading.connection_of(device) is not None:
        if names:
            raise InvalidValueError(f"The meter {names[0]!r} reads this machine, and {device} is another one. Omit it.")
        return {}
    usual = "nvml" if device.startswith("cuda") else "rapl"
    found = {}
    for name in names or (usual,):
        try:
            meter = loading.load_meter(name, device)
            with meter.session():
                found[name] = meter
        except LatencyError:
            if names:
                raise
    return found


@farm_command.command("fit")
@click.argument("address", metavar="URL")
@click.option("--name", help="Name of this worker.  [default: that of the machine]")
@click.option("--host", metavar="ADDRESS", help="Address to listen on.  [default: all, or 127.0.0.1 if the farm does]")
@grouped()
def fit(address: str, name: str | None, host: str | None, security: SecurityOptions) -> None:
    """Fit predictors for a farm on this machine, until Ctrl-C.

    Such a worker measures nothing, and nothing is measured on its processors: run it on another machine than those that
    measure, or bind it to processors of its own with taskset. It fits one thing at a time; start several for several.
    """
    farm.join_fits(address, name=name or machine.node() or "worker", security=security.made(), host=host, tell=_tell)
    _tell("Left the farm.")


@farm_command.command("status", cls=ReportingCommand)
@click.argument("address", metavar="URL")
@grouped()
def status(address: str, security: SecurityOptions) -> None:
    """List the workers of a farm."""
    client = click.get_current_context().with_resource(farm.Farm(address, security.made()))
    rows = [asdict(worker) for worker in client.workers()]
    columns = [
        Column("worker", "name"),
        Column("platform", "platform"),
        Column("state", "state"),
        Column("campaigns", "benches", metric="count"),
        Column("jobs", "jobs", metric="count"),
        Column("joined, ago", "since_joined", metric="duration"),
        Column("checked, ago", "since_checked", metric="duration"),
        Column("slower", "slower", _share),
    ]
    fitters = client.fitters()
    reasons = [f"{row['name']} is in quarantine: {row['reason']}" for row in rows if row["reason"]]
    nothing = f"No workers. Start one on each machine: nni-latency farm join {client.address}"
    shown = [{**row, "since_joined": _ago(row["joined"]), "since_checked": _ago(row["checked"])} for row in rows]
    grid = Grid(shown, columns, f"Workers of {client.address}", nothing=nothing)
    content: dict[str, Any] = {"farm": str(client.address), "workers": rows, "fitters": fitters}
    fitting = [f"Workers that fit predictors: {', '.join(fitters)}"] if fitters else []
    print_report(Report(grid, content, rows, after=[*reasons, *fitting]))


def _ago(moment: float) -> int:
    return max(1, round(time.time() - moment))


def _share(factor: float) -> str:
    return format_percent(factor - 1)


def _tell(sentence: str) -> None:
    remarks().print(sentence, markup=False)
