# SPDX-License-Identifier: Apache-2.0
"""Tables of operators: what is measured for one, and the table."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nni_latency.costs import NORMAL
from nni_latency.errors import InvalidValueError
from nni_latency.measurement import NetworkCalls, NetworkSchedule, Protocol, Subject
from nni_latency.measurement.runtimes import Runtime
from nni_latency.operators import parse_op_keys
from nni_latency.tables._entries import Entry, MeasuredNetwork
from nni_latency.tables._lookup_table import LookupTable
from nni_latency.tables._operator_energy import energy_of_operators
from nni_latency.tables._operator_samples import OperatorSamples, Place, between_places
from nni_latency.tables._plan import OperatorPlan
from nni_latency.tables._solving import powers_of
from nni_latency.units import number_of

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: Kind of the campaign of a table of operators in a store.
OPERATORS_KIND = "operators"

#: Weight of the prior of an operator's spread, that of its kind, in places.
_PRIOR_PLACES = 4

#: Prior spread of an operator between networks, as a relative standard deviation, and its lower bound.
_USUAL_SPREAD, _LEAST_SPREAD = 0.1, 0.005


def operator_entries(places: Sequence[Place]) -> dict[str, Entry]:
    """Return the cost of every timed operator: the mean over its places in networks.

    The time of an operator varies between networks, with the content of the caches and the placement of a process in
    memory. The mean makes entries add up to the networks on average: a runtime that fuses takes no time for an operator
    in one place and its full time in another.

    Parameters
    ----------
    places : sequence of Place
        Time of each operator in every place of every network.

    Returns
    -------
    dict of str to Entry
        Entries by operator key, in the order of the networks.
    """
    keys = list(dict.fromkeys(place.op_key for place in places))
    ops = {key: parse_op_keys(key)[0] for key in keys}
    numbers = {key: number for number, key in enumerate(keys)}
    which = np.array([numbers[place.op_key] for place in places], dtype=np.int64)
    values = np.array([place.value for place in places], dtype=np.float64)
    costs, squares, counts = between_places(which, values, len(keys))
    kinds = np.array([ops[key].kind for key in keys])
    usual = {kind: _usual_spread(squares[kinds == kind], counts[kinds == kind]) for kind in set(kinds)}
    networks: dict[str, set[str]] = defaultdict(set)
    runs: dict[str, int] = defaultdict(int)
    for place in places:
        networks[place.op_key].add(place.network)
        runs[place.op_key] += place.n_samples
    entries = {}
    for number, key in enumerate(keys):
        count, prior = int(counts[number]), usual[kinds[number]]
        variance = (squares[number] + _PRIOR_PLACES * prior**2) / (count - 1 + _PRIOR_PLACES)
        # The logarithm of a log-normal variable with this relative variance.
        spread = math.sqrt(math.log1p(variance))
        # Prediction interval for an unseen place: includes the standard error of the mean.
        reach = math.exp(NORMAL * max(_LEAST_SPREAD, spread) * math.sqrt(1 + 1 / count))
        value = float(costs[number])
        entries[key] = Entry(
            value,
            value / reach,
            value * reach,
            runs[key],
            op=ops[key],
            n_places=count,
            n_networks=len(networks[key]),
        )
    return entries


def _usual_spread(squares: Floats, counts: Ints) -> float:
    """Return the spread of the operators of one kind between places, as a relative standard deviation."""
    freedom = int(np.maximum(counts - 1, 0).sum())
    return math.sqrt((squares.sum() + 4 * _USUAL_SPREAD**2) / (freedom + 4))


def check_operators(runtime: Runtime, metric: str) -> None:
    """Check that a table of operators can be measured.

    Raises
    ------
    MeasurementError
        If the runtime cannot time operators inside a network.
    InvalidValueError
        If a table of operators cannot hold the metric.
    """
    if not runtime.sees_calls:
        raise runtime.sees_no_calls(
            "Tables of spaces without layers of their own need one that can, such as torch or torch-nhwc."
        )
    if metric not in ("latency", "energy"):
        raise InvalidValueError(
            f"A table of operators holds latency or energy, which add up to those of networks. Got {metric!r}."
        )


def operator_schedule(plan: OperatorPlan, protocol: Protocol, *, isolated: bool = True) -> NetworkSchedule:
    """Return the schedule of a plan's networks, with every call timed; the first network is visited in every round."""
    subjects = [_subject(plan, index) for index in range(len(plan.networks))]
    return NetworkSchedule(
        subjects[1:],
        protocol,
        isolated=isolated,
        always=subjects[:1],
        divided=True,
        calls=True,
        n_calls={
            subject.key: network.subject_calls.n_calls for subject, network in zip(subjects, plan.networks, strict=True)
        },
        kind=OPERATORS_KIND,
    )


def _subject(plan: OperatorPlan, index: int) -> Subject:
    network = plan.networks[index]
    sample = dict(network.sample)
    specification = {"selection": sample, **network.subject_calls.content()}
    return Subject(json.dumps(sample), network.build, plan.input_shape, "network", network.calls.digest, specification)


def operators_table(
    schedule: NetworkSchedule, specifications: Mapping[str, Mapping[str, Any]], metric: str, **header: Any
) -> LookupTable:
    """Build the table from measured rounds of networks.

    Parameters
    ----------
    schedule : NetworkSchedule
        The measured schedule, with the calls inside the networks.
    specifications : mapping of str to mapping
        Specification of each network by its key: its choices, and the mapping of its calls to operators.
    metric : {"latency", "energy"}
        Metric of the table.
    **header
        Space, platform, input shape and coverage.
    """
    failures, records = schedule.failures, [record for records in schedule.observed for record in records]
    calls = {key: NetworkCalls.read(item) for key, item in specifications.items() if key not in failures}
    samples = OperatorSamples(calls, schedule.protocol, records)
    measured, fit = samples.measured, samples.fit
    entries = operator_entries([place for network in measured for place in samples.corrected_places(network)])
    for key, beside in samples.beside.items():
        entries[key] = replace(entries[key], beside=beside)
    networks = tuple(
        MeasuredNetwork(
            value=whole.value,
            low=whole.low,
            high=whole.high,
            sample=specifications[network]["selection"],
            entries=fit.sums[network],
            n_samples=whole.n_samples,
        )
        for network, whole in fit.wholes.items()
    )
    table = LookupTable(
        **header,
        operators=tuple(entries.values()),
        networks=networks,
        reference=networks[0].value,
        protocol=schedule.protocol,
        calibration=fit.calibration,
        residency=fit.residency,
        # Not that of energy, which has another calibration.
        network_error=float(f"{samples.network_error():.4g}") if metric == "latency" else None,
        rounds=schedule.rounds,
        duration=round(schedule.spent, 3),
        drift=tuple(samples.drift),
        remarks=_unmeasured(len(measured), len(specifications) - len(failures)),
        failures=dict(sorted(failures.items())),
    )
    if metric == "latency":
        return table
    powers = powers_of((record.subjects[0], record) for record in records)
    modules = [calls[network].modules for network in measured]
    placed = [item.neighbours for item in modules if item.neighbours is not None]
    return energy_of_operators(
        table,
        [item.operators for item in modules],
        [powers[network] for network in measured if network in powers],
        placed if len(placed) == len(modules) else None,
    )


def _unmeasured(measured: int, planned: int) -> tuple[str, ...]:
    """Return a remark on the networks that the budget did not reach."""
    if measured == planned:
        return ()
    return (
        f"The budget was spent after {measured} of {number_of(planned, 'network')}, so more operators are predicted "
        "than need be: give a larger budget.",
    )
