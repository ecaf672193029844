# SPDX-License-Identifier: Apache-2.0
"""``nni-latency serve``."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import click

import nni_latency.database as database
import nni_latency.loading as loading
import nni_latency_service as service
import nni_latency_service.query as query
from nni_latency.cli import DURATION, ESTIMATOR_FLAGS, REMOTE_VARIABLE, grouped, names_option, option, remarks, results
from nni_latency.errors import InvalidValueError
from nni_latency.measurement import Limits
from nni_latency_service.commands._keys import keys_command
from nni_latency_service.commands._query import database_option, load_predictors, threads_option


@dataclass(frozen=True)
class _AddressOptions:
    """Where it listens, and who may ask."""

    host: str = option("Address to listen on. Other machines need keys.", default="127.0.0.1")
    port: int = option("Port; 0 for any that is free.", type=click.IntRange(0, 65535), default=8765)
    keys: Path | None = option("File of 'nni-latency serve keys'.", type=click.Path(path_type=Path))
    hosts: tuple[str, ...] = option(
        "Name by which the service may be called, such as that of a proxy; repeat for several.  "
        "[default: any with keys, else those of this machine]",
        "--name",
        multiple=True,
    )


@dataclass(frozen=True)
class _AnswerOptions:
    """Where records are, what predicts and what measures."""

    database: str | None = database_option()
    predictor: tuple[str, ...] = option(
        "What predicts, as for 'nni-latency query'; repeat for several.", *ESTIMATOR_FLAGS, multiple=True
    )
    platforms: tuple[str, ...] = names_option(
        "Runtime of this machine that measures, such as onnxruntime or openvino:bf16; repeat for several.  "
        "[default: none]",
        "--platform",
        metavar="NAME[:PRECISION]",
    )
    threads: int = threads_option()
    remote: str | None = option(
        "Other machines that measure, too, such as farm:tcp://HOST:8786.  [default: none]",
        metavar="NAME:ADDRESS",
        envvar=REMOTE_VARIABLE,
        rare=True,
    )
    budget: float = option("Maximum time spent measuring a network.", type=DURATION, default="20s")
    every: float | None = option(
        "Learn from the database this often, such as 1h, as 'learn graph --from-database' does.  [default: never]",
        type=DURATION,
    )


@dataclass(frozen=True)
class _LimitOptions:
    """What it takes at most."""

    max_upload: float = option("Size of a request [MiB].", type=click.FloatRange(0.01, 2048), default=64.0)
    max_rate: float = option("Requests of a client by second.", type=click.FloatRange(0.1), default=1000.0)
    max_uploads: float = option("Networks that a client may send by second.", type=click.FloatRange(0.01), default=20.0)
    max_queue: int = option("Measurements that wait or run.", type=click.IntRange(1), default=100)
    max_memory: float = option("Memory of a process that measures [GiB].", type=click.FloatRange(0.5), default=8.0)

    def make(self) -> service.ServiceLimits:
        """Make the limits."""
        usual = service.ServiceLimits()
        return replace(
            usual,
            body=int(self.max_upload * 2**20),
            rate=self.max_rate,
            burst=2 * self.max_rate,
            uploads=self.max_uploads,
            queue=self.max_queue,
            measure=replace(usual.measure, memory=int(self.max_memory * 2**30)),
        )


@click.group("serve", invoke_without_command=True)
@click.pass_context
@grouped()
def serve_command(
    context: click.Context, address: _AddressOptions, answers: _AnswerOptions, limits: _LimitOptions
) -> None:
    """Serve latencies over HTTP: known, measured or predicted.

    The description of the interface is at /openapi.json, figures for Prometheus are at /metrics. Ctrl-C ends it.
    """
    if context.invoked_subcommand is None:
        _serve(address, answers, limits)


serve_command.add_command(keys_command)


def _serve(address: _AddressOptions, answers: _AnswerOptions, limits: _LimitOptions) -> None:
    """Serve until Ctrl-C."""
    keys = service.ApiKeys.load(address.keys) if address.keys is not None else None
    service.check_binding(address.host, keys)
    most = limits.make()
    if answers.database == database.MEMORY:
        raise InvalidValueError("A service keeps what it measures. Name a file or a URL with --database.")
    store = database.open_store(answers.database)
    with contextlib.closing(store):
        made = service.LatencyService(_query(store, answers, most), most)
        with contextlib.closing(made):
            made.take_current()
            if answers.every is not None:
                made.evolve_every(answers.every)
            service.serve(
                made, host=address.host, port=address.port, keys=keys, hosts=address.hosts, on_start=_announce(answers)
            )


def _query(store: Any, answers: _AnswerOptions, limits: service.ServiceLimits) -> query.LatencyQuery:
    return query.LatencyQuery(
        store,
        machines=_machines(answers, limits.measure),
        predictors=load_predictors(answers.predictor),
        protocol=replace(query.QUERY_PROTOCOL, time_budget=answers.budget),
    )


def _machines(answers: _AnswerOptions, limits: Limits) -> query.Machines:
    runtimes = [loading.load_runtime(name, threads=answers.threads) for name in answers.platforms]
    here = query.LocalMachines(runtimes, limits)
    if answers.remote is None:
        return here
    address, named, _ = answers.remote.partition("#")
    if named:
        raise InvalidValueError(
            f"A service measures on all platforms of other machines. Give --remote {address} alone."
        )
    there = query.RemoteMachines(partial(loading.load_remote, address), limits)
    return query.AllMachines([here, there])


def _announce(answers: _AnswerOptions) -> Any:
    def announce(url: str) -> None:
        results().print(f"Serving on {url}", markup=False)
        if not (answers.platforms or answers.remote):
            remarks().print(
                "Nothing is measured: name runtimes of this machine with --platform, or other machines with --remote."
            )

    return announce
