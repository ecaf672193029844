"""What all builds of tables share: the files beside a table, one builder at a time, and going on with a journal."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from nni_latency.errors import InvalidValueError, MismatchError
from nni_latency.files import reserved
from nni_latency.json_lines import START_OVER
from nni_latency.measurement import Protocol
from nni_latency.measurement.runtimes import Runtime
from nni_latency.platforms import Conditions, Platform, check_same_platform, remarks_on
from nni_latency.tables._journal import Failure, Journal, RoundRecord, prior_path
from nni_latency.tables._lookup_table import LookupTable
from nni_latency.tables._operator_plan import OperatorPlan
from nni_latency.tables._operator_table import OperatorTable
from nni_latency.tables._plan import MeasurePlan, plain_arguments

Table = TypeVar("Table", LookupTable, OperatorTable)

#: What a resumed build may change: how long it goes on.
_MAY_CHANGE = ("time_budget", "rounds", "half_width", "timeout", "processes")


def journal_path(out: Path) -> Path:
    """Return where the journal of a table lies while the table is built."""
    return out.with_name(f".{out.name}.journal.jsonl")


def samples_path(out: Path) -> Path:
    """Return where the raw samples of a table lie if they are kept."""
    return out.with_name(f"{out.stem}.samples.jsonl")


def check_new(target: Path, *, overwrite: bool = False) -> None:
    """Raise `InvalidValueError` if there is a file already that may not be replaced."""
    if target.exists() and not overwrite:
        raise InvalidValueError(f"{str(target)!r} exists. Choose another file, or replace it with --overwrite.")


@dataclass(frozen=True)
class Build:
    """One table in the making, which no other process builds meanwhile.

    Parameters
    ----------
    target : Path
        Where the table goes.
    runtime : Runtime
        What is measured.
    journal : Journal
        Ready for the next round.
    done : list of RoundRecord
        Rounds of earlier runs.
    failures : list of Failure
        What could not be measured in them.
    before : Conditions
        What the machine was like at the beginning.
    """

    target: Path
    runtime: Runtime
    journal: Journal
    done: list[RoundRecord]
    failures: list[Failure]
    before: Conditions

    def finish(self, table: Table, *, keep_samples: bool) -> Table:
        """Write the table with what the machine was like, remove the journal or keep its samples; return the table.

        Raises
        ------
        OutputError
            If it cannot be written. The journal stays.
        """
        after: Conditions = self.runtime.conditions()
        whole = replace(
            table,
            conditions={"before": self.before.as_dict(), "after": after.as_dict()},
            remarks=(*table.remarks, *map(str, remarks_on(self.before, after))),
        )
        whole.save(self.target)
        if keep_samples:
            self.journal.path.replace(samples_path(self.target))
        self.journal.remove()
        return whole


@contextlib.contextmanager
def building(
    out: str | Path,
    header: Mapping[str, Any],
    runtime: Runtime,
    protocol: Protocol,
    *,
    resume: bool,
    overwrite: bool,
) -> Iterator[Build]:
    """Hold a table that is built, and go on with its journal if there is one.

    Parameters
    ----------
    out : str or Path
        Where the table goes.
    header : mapping
        What the rounds of the journal belong to.
    runtime, protocol
        What executes the plan, and how it is measured.
    resume, overwrite : bool
        Whether to go on with a journal, and whether to replace a finished table.

    Raises
    ------
    OutputError
        If table or journal cannot be written.
    InvalidValueError
        If there is a table already and `overwrite` is false.
    BusyError
        If another process builds this table.
    MismatchError
        If the journal belongs to something else, or runtime and protocol differ in threads.
    """
    protocol.check_threads(runtime.platform.threads)
    target = Path(out)
    with reserved(target, "building"):
        check_new(target, overwrite=overwrite)
        journal = Journal(journal_path(target), header)
        resume = resume and not journal.is_left_behind(target)
        done, failures = open_journal(journal, runtime.platform, protocol, resume)
        yield Build(target, runtime, journal, done, failures, runtime.conditions())


def journal_header(
    plan: MeasurePlan | OperatorPlan, candidates: list[Any], platform: Platform, protocol: Protocol
) -> dict[str, Any]:
    """Say what the rounds of a journal belong to; `candidates` tell what is measured of the space."""
    return {
        "space": {"name": plan.space.name, "arguments": plain_arguments(plan.space)},
        "input_shape": list(plan.input_shape),
        "candidates": candidates,
        "platform": platform.as_dict(),
        "protocol": protocol.as_dict(),
    }


def open_journal(
    journal: Journal, platform: Platform, protocol: Protocol, resume: bool
) -> tuple[list[RoundRecord], list[Failure]]:
    """Return the rounds and failures of earlier runs, and leave the journal ready for the next one."""
    if not (resume and journal.exists()):
        prior_path(journal.path).unlink(missing_ok=True)
        journal.start()
        return [], []
    header, rounds, failures = journal.read()
    what = f"Going on with the journal {str(journal.path)!r}"
    if header.get("networks") != journal.header.get("networks"):
        raise MismatchError(f"{what} would mix measurements of different networks. {START_OVER}")
    for key in ("space", "input_shape", "candidates"):
        if header.get(key) != journal.header.get(key):
            raise MismatchError(
                f"{what} would mix two spaces: {header.get('space')} of input {header.get('input_shape')} "
                f"against {journal.header['space']} of input {journal.header['input_shape']}. {START_OVER}"
            )
    try:
        before, old = Platform(**header["platform"]), Protocol(**header["protocol"])
    except (KeyError, TypeError) as error:
        raise MismatchError(f"{what} is not possible: its header lacks {error}. {START_OVER}") from error
    check_same_platform(before, platform, what)
    differences = old.differences(protocol, ignore=_MAY_CHANGE)
    if differences:
        raise MismatchError(f"{what} would mix two protocols ({'; '.join(differences)}). {START_OVER}")
    journal.drop_cut_line()
    return rounds, failures
