# SPDX-License-Identifier: Apache-2.0
"""``nni-latency query``."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import click

import nni_latency.database as database
import nni_latency.graphs as graphs
import nni_latency.loading as loading
import nni_latency.measurement as measurement
import nni_latency_service.query as query
from nni_latency.cli import (
    DURATION,
    ESTIMATOR_FLAGS,
    Column,
    Grid,
    NetworkOptions,
    Report,
    ReportingCommand,
    grouped,
    option,
    parsed,
    print_report,
    progress,
    refuse_given,
    remarks,
    sentence,
)
from nni_latency.documents import SavedFile
from nni_latency.errors import (
    InvalidValueError,
    LatencyError,
    MissingDependencyError,
    MissingEntryError,
    UnknownNameError,
    listed,
)
from nni_latency.platforms import Platform, ids_named
from nni_latency.units import format_percent, format_seconds, parse_share
from nni_latency_service.commands._question import question_of

#: What a predictor of all platforms says that it is.
_GRAPH_PREDICTOR = "nni_latency.graph_predictor"

#: Fields of options of what answers and measures on this machine.
_ASKED_HERE = ("database", "predictor", "threads", "device", "budget")

SHARE = parsed("percent", parse_share)


@dataclass(frozen=True)
class _AskOptions:
    """On which platform, and what is done about what nobody knows."""

    platform: str | None = option(
        "Platform: its id or a part of it, or a runtime of this machine, such as onnxruntime.  [default: all known]"
    )
    measure: Any = option(
        "Measure what no record knows: always, if the prediction is not within --within, or never.  "
        "[default: if-unsure; without --platform never]",
        type=click.Choice(["always", "if-unsure", "never"]),
    )
    within: float = option("Width of a prediction that is sure enough, such as 10%.", type=SHARE, default="10%")


database_option = partial(
    option,
    "Where records are kept.  [default: the user's own database]",
    metavar="URL|FILE",
    envvar=database.DATABASE_VARIABLE,
    rare=True,
)

threads_option = partial(option, "Number of CPU threads of a runtime.", type=click.IntRange(1), default=1, rare=True)


@dataclass(frozen=True)
class _KnownOptions:
    """Where records are, and what predicts."""

    database: str | None = database_option()
    predictor: tuple[str, ...] = option(
        f"What predicts: a file of 'learn graph', {graphs.PRETRAINED}, or an estimator; repeat for several, the "
        f"first that knows the platform is asked.  [default: {graphs.PRETRAINED}, where one ships]",
        *ESTIMATOR_FLAGS,
        multiple=True,
    )


@dataclass(frozen=True)
class _ServiceOptions:
    """The service that is asked instead."""

    url: str | None = option("Ask a service at this URL. Its API key is the value of the variable NNI_LATENCY_API_KEY.")


@dataclass(frozen=True)
class _MachineOptions:
    """What measures."""

    threads: int = threads_option()
    device: str = option("Device, such as cpu, cuda or ssh:USER@HOST.", default="cpu")
    budget: float = option("Maximum time spent measuring.", type=DURATION, default="20s")


@click.command("query", cls=ReportingCommand)
@click.argument("network", metavar="NET|KEY")
@grouped()
def query_command(
    network: str,
    asked: _AskOptions,
    known: _KnownOptions,
    remote: _ServiceOptions,
    machine: _MachineOptions,
    options: NetworkOptions,
) -> None:
    """Ask for a latency: from a record, a measurement or a prediction.

    NET is a network, as for 'nni-latency predict'; KEY is that of an operator, a kernel or a graph. What is measured is
    kept, and never measured again.
    """
    if asked.platform is None and asked.measure not in (None, "never"):
        raise InvalidValueError("Measuring needs one platform. Name it with --platform.")
    if remote.url is not None:
        refuse_given(_ASKED_HERE, "with --url: the service has its own")
    question = question_of(network, options)
    with contextlib.redirect_stdout(sys.stderr):
        answers = (
            _ask(question, asked, known, machine) if remote.url is None else _ask_service(question, asked, remote.url)
        )
    print_report(_report(question, answers))


def _ask(
    question: query.Question, asked: _AskOptions, known: _KnownOptions, machine: _MachineOptions
) -> list[query.Answer]:
    store = database.open_store(known.database)
    runtime, reason = _runtime_here(asked.platform, machine)
    engine = query.LatencyQuery(
        store,
        machines=query.LocalMachines([runtime] if runtime is not None else []),
        predictors=load_predictors(known.predictor),
        protocol=replace(query.QUERY_PROTOCOL, time_budget=machine.budget),
    )
    try:
        if asked.platform is None:
            return _ask_everywhere(engine, question)
        platform = _platform_of(asked.platform, runtime, engine, reason)
        with _measuring(platform) as on_progress:
            return [
                engine.ask(
                    question,
                    platform,
                    measure=asked.measure or "if-unsure",
                    within=asked.within,
                    on_progress=on_progress,
                )
            ]
    except MissingEntryError as error:
        raise MissingEntryError(f"{error} {reason}".rstrip()) from error
    finally:
        store.close()


def _ask_service(question: query.Question, asked: _AskOptions, url: str) -> list[query.Answer]:
    client = query.LatencyClient(url)
    platforms = client.platforms()
    if asked.platform is None:
        found = [_quietly(client, question, platform) for platform in platforms]
        answers = [answer for answer in found if answer is not None]
        if not answers:
            raise UnknownNameError(f"The service {url} does not know {question.name!r} on any platform.")
        return sorted(answers, key=lambda answer: answer.value)
    platform = _fitting(asked.platform, platforms, client.platforms(measured=True))
    with progress(remarks()) as bar:
        task = bar.add_task("waiting for the service", total=1.0, left="")
        answer = client.query(
            question,
            platform,
            measure=asked.measure or "if-unsure",
            within=asked.within,
            on_progress=lambda share: bar.update(task, completed=share, description="measuring"),
        )
    return [answer]


def _quietly(client: query.LatencyClient, question: query.Question, platform: str) -> query.Answer | None:
    try:
        return client.query(question, platform, measure="never")
    except MissingEntryError:
        return None


def _ask_everywhere(engine: query.LatencyQuery, question: query.Question) -> list[query.Answer]:
    found = []
    for platform in engine.platforms():
        with contextlib.suppress(LatencyError):
            found.append(engine.ask(question, platform, measure="never"))
    if not found:
        raise UnknownNameError(
            f"The latency of {question.name!r} is neither recorded nor predicted. Measure it: name a runtime of this "
            "machine with --platform."
        )
    return sorted(found, key=lambda answer: answer.value)


def _runtime_here(name: str | None, machine: _MachineOptions) -> tuple[Any, str]:
    """Return the runtime of this machine that a platform stands for; None and the reason if it is elsewhere."""
    if name is None:
        return None, ""
    id_ = name if name.count(".") == 3 else None
    source, threads = name, machine.threads
    if id_ is not None:
        wanted = Platform.parse(id_)
        source, threads = f"{wanted.runtime}:{wanted.precision}", wanted.threads
    try:
        runtime = loading.load_runtime(source, machine.device, threads=threads)
    except (UnknownNameError, InvalidValueError) as error:
        return None, str(error)
    except MissingDependencyError as error:
        # Records and predictions know platforms whose runtimes are not installed here.
        if id_ is None:
            raise
        return None, str(error)
    return (runtime, "") if id_ in (None, runtime.platform.id) else (None, "")


def _platform_of(name: str, runtime: Any, engine: query.LatencyQuery, reason: str) -> str:
    """Return the id of a platform; ``reason`` is why no runtime of this machine has this name."""
    if runtime is not None:
        found: str = runtime.platform.id
        return found
    ids = engine.platforms()
    fitting = ids_named(name, ids)
    if len(fitting) > 1 and name.partition(":")[0] in {Platform.parse(item).runtime for item in ids}:
        raise UnknownNameError(
            f"{name!r} cannot be measured on this machine: {reason} Name the platform whose prediction or record you "
            f"want: {listed(fitting)}."
        )
    return _fitting(name, ids)


def _fitting(name: str, ids: list[str], preferred: Sequence[str] = ()) -> str:
    """Return the id that a name stands for; of several, the only one that is preferred."""
    fitting = ids_named(name, ids)
    chosen = [item for item in fitting if item in preferred]
    fitting = chosen if len(chosen) == 1 else fitting
    if len(fitting) != 1:
        several = f"Several platforms have {name!r} in their id: {', '.join(fitting)}. Name one."
        none = f"{UnknownNameError.of('platform', name, ids)} Name one, a part of its id, or a runtime of this machine."
        raise UnknownNameError(several if fitting else none)
    return fitting[0]


@contextlib.contextmanager
def _measuring(platform: str) -> Any:
    """Show a progress bar once something is measured."""
    bar = progress(remarks())
    task = bar.add_task("warming up", total=1.0, left="")
    begun = False

    def on_progress(state: measurement.Progress) -> None:
        nonlocal begun
        if not begun:
            remarks().print(f"Measuring on {platform}", markup=False)
            bar.start()
            begun = True
        left = format_seconds(state.remaining) if state.remaining > 0 else "0 s"
        bar.update(task, completed=state.share, description=f"round {state.rounds}", left=f"at most {left} left")

    try:
        yield on_progress
    finally:
        if begun:
            bar.stop()


def load_predictors(names: tuple[str, ...]) -> dict[str, Any]:
    """Load predictors by their names; without any, the one that ships, where one does."""
    if not names:
        try:
            return {graphs.PRETRAINED: _load_graphs(graphs.PRETRAINED)}
        except LatencyError:
            return {}
    return {name: _load_predictor(name) for name in names}


def _load_predictor(name: str) -> Any:
    path = loading.file_of(name)
    is_graphs = path is not None and SavedFile(path).kind == _GRAPH_PREDICTOR
    return _load_graphs(name) if is_graphs else loading.load_estimator(name)


def _load_graphs(name: str) -> graphs.GraphPredictor:
    return graphs.GraphPredictor.load(graphs.find_predictor(name))


def _report(question: query.Question, answers: list[query.Answer]) -> Report:
    rows = [{**answer.content(), "age": answer.age, "interval": _interval(answer)} for answer in answers]
    places: dict[str, list[str]] = {}
    for answer in answers:
        for line in _lines(answer):
            places.setdefault(line, []).append(answer.platform)
    lines = [line if len(found) == len(answers) > 1 else f"{listed(found)}: {line}" for line, found in places.items()]
    grid = Grid(rows, _COLUMNS, question.name or question.key)
    content = {"key": question.key, "kind": question.kind, "name": question.name, "answers": rows}
    return Report(grid, content, after=[*lines, f"key: {question.key}"])


def _interval(answer: query.Answer) -> str:
    return f"{format_seconds(answer.low)} to {format_seconds(answer.high)}"


def _lines(answer: query.Answer) -> list[str]:
    versions = ", ".join(f"{name} {value}" for name, value in answer.versions.items())
    if answer.repeatability is not None:
        versions = f"repeatability {format_percent(answer.repeatability)}, {versions}"
    by = f"predicted by {answer.predictor}" if answer.source == "prediction" else f"campaign {answer.campaign}"
    # What is missing is named by its key, or is told in words.
    names = [item for item in answer.missing if " " not in item.partition("(")[0]]
    told = [sentence(item) for item in answer.missing if item not in names]
    unknown = [f"Not known to the predictor: {', '.join(names)}."] if names else []
    return [f"{by}, {versions}" if versions else by, *unknown, *told, *answer.remarks]


_COLUMNS = [
    Column("platform", "platform"),
    Column("latency", "value", metric="latency"),
    Column("from", "low", metric="latency"),
    Column("to", "high", metric="latency"),
    Column("source", "source"),
    Column("age", "age", absent="-", metric="duration"),
]
