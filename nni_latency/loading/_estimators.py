# SPDX-License-Identifier: Apache-2.0
"""`load_estimator`: an estimator from whatever a ``latency_estimator=`` argument may be."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TypeAlias

import nni_latency.documents as documents
import nni_latency.energy as energy
import nni_latency.estimators as estimators
import nni_latency.fusion as fusion
import nni_latency.graphs as graphs
import nni_latency.kernels as kernels
import nni_latency.tables as tables
from nni_latency.errors import InvalidValueError, UnknownNameError
from nni_latency.files import is_file, naming, split_sources
from nni_latency.plugins import load_registry

#: Ends the argument of a fallback whose second estimator may be of another platform.
ACROSS = ",across-platforms"

EstimatorSource: TypeAlias = "estimators.Estimator | tables.LookupTable | str | os.PathLike[str]"


def load_estimator(source: EstimatorSource, *, missing: estimators.Missing | None = None) -> estimators.Estimator:
    """Return an estimator.

    Parameters
    ----------
    source : Estimator, LookupTable, str or path
        An estimator, which is returned as it is; a table; the path of a saved table or predictor; the name of
        a table that ships with the package, or ``"pretrained"`` for the predictor that ships; or the name of a
        registered plugin, ``"name"`` or ``"name:argument"``. A path that exists is a path, whatever it looks like.
    missing : {"error", "nearest", "predict"}, optional
        What a table does about candidates and operators without an entry; see
        `nni_latency.estimators.TableEstimator`.

    Raises
    ------
    InvalidValueError
        If the source is of another type, or a file of several platforms, of which one must be named.
    UnknownNameError
        If it is neither a file nor the name of a shipped table or of a plugin.
    FileFormatError
        If it is a file that cannot be read.
    PluginError
        If the plugin fails to make an estimator.

    Examples
    --------
    >>> from nni_latency import LookupTable
    >>> table = LookupTable.from_latencies({"a": ["x", "y"]}, {"a": {"x": 0.001, "y": 0.002}})
    >>> load_estimator(table).predict([[1]])
    array([0.002])
    """
    if isinstance(source, estimators.Estimator):
        return source.resolve()
    if isinstance(source, tables.LookupTable):
        return estimators.TableEstimator(source, missing=missing)
    if not isinstance(source, (str, os.PathLike)):
        raise InvalidValueError(
            "The 'latency_estimator' must be an Estimator, a LookupTable, the path of a saved one, or the name of a "
            f"plugin ('name' or 'name:argument'). Got {type(source).__name__}."
        )
    path = file_of(source)
    if path is None:
        return _from_plugin(str(source), missing)
    with naming(path):
        return _from_file(documents.SavedFile(path), os.fspath(source), missing)


def list_estimators() -> list[str]:
    """Return every name that `load_estimator` knows: shipped tables, the shipped predictor, and plugins.

    Most plugins want an argument, as in ``"acts:model.json"``; ``nni-latency plugins`` says which plugin each is from.

    Examples
    --------
    >>> "ensemble" in list_estimators()
    True
    """
    predictor = [graphs.PRETRAINED] if graphs.shipped_predictor() is not None else []
    return [*tables.shipped_tables(), *predictor, *load_registry().estimators]


def _from_file(file: documents.SavedFile, name: str, missing: estimators.Missing | None) -> estimators.Estimator:
    if file.kind == "nni_latency.graph_predictor":
        return graphs.GraphNetworkEstimator.of(name)
    found = documents.load(file, _ESTIMATORS)
    if isinstance(found, tables.LookupTable):
        return estimators.TableEstimator(found, missing=missing)
    if isinstance(found, estimators.Estimator):
        return found.resolve()
    if isinstance(found, kernels.KernelPredictors):
        return _kernel_estimator(found, name)
    return _portable_estimator(found, name)


def load_table(source: str | os.PathLike[str]) -> tables.LookupTable:
    """Return the table that a name stands for: a file, a shipped table or a plugin, as for `load_estimator`.

    Raises
    ------
    InvalidValueError
        If it is an estimator without a table.
    LatencyError
        Whatever `load_estimator` raises.
    """
    path = file_of(source)
    if path is not None:
        table: tables.LookupTable = documents.load(tables.find_table(path), _TABLES)
        return table
    found = load_estimator(source)
    if not isinstance(found, estimators.TableEstimator):
        raise InvalidValueError(f"{str(source)!r} is {found!r}, which is no table. Name a table.")
    return found.table


def load_fallback(argument: str) -> estimators.Estimator:
    """Make an estimator of ``TABLE,ESTIMATOR`` or ``TABLE,ESTIMATOR,across-platforms``, the argument of ``fallback``.

    Parameters
    ----------
    argument : str
        A table, by file or name, and what is asked for the entries that it lacks: whatever `load_estimator` takes. With
        ``across-platforms`` that may be of another platform, and is scaled to the table.

    Raises
    ------
    InvalidValueError
        If it is not of this form, or the first is no table.
    LatencyError
        Whatever `load_estimator` raises for one of them.
    """
    first, second = _two_sources(argument)
    behind = second.removesuffix(ACROSS)
    if not (first and behind.strip()):
        raise InvalidValueError(
            "The estimator 'fallback' takes a table and what is asked where it lacks entries, as in "
            f"'fallback:table.json,roofline:100,20{ACROSS}'. Got {argument!r}."
        )
    table, other = load_estimator(first), load_estimator(behind.strip())
    if not isinstance(table, estimators.TableEstimator):
        raise InvalidValueError(f"The first of a fallback must be a table. Got {table!r} for {first!r}.")
    return estimators.with_fallback(table, other, across_platforms=second.endswith(ACROSS))


def load_weighted(argument: str) -> estimators.Estimator:
    """Make an estimator of ``WEIGHT*TABLE,WEIGHT*TABLE``, the argument of ``weighted``.

    Parameters
    ----------
    argument : str
        Tables of several metrics, each with its weight in one over the SI unit of the metric; see
        `nni_latency.tables.weigh_tables`.

    Raises
    ------
    InvalidValueError
        If it is not of this form, or one is no table of candidates.
    LatencyError
        Whatever `load_table` and `nni_latency.tables.weigh_tables` raise.
    """
    weights, found = [], []
    for part in split_sources(argument):
        weight, star, source = part.partition("*")
        try:
            weights.append(float(weight))
        except ValueError:
            star = ""
        table = load_table(source.strip()) if star else None
        if table is None:
            raise InvalidValueError(
                "The estimator 'weighted' takes tables of candidates with weights, as in "
                f"'weighted:100*latency.json,20*energy.json'. Got {part!r}."
            )
        found.append(table)
    return estimators.TableEstimator.weighted(found, weights)


def load_kernels(argument: str) -> estimators.Estimator:
    """Make an estimator of ``PREDICTORS`` or ``PREDICTORS,RULES``, the argument of ``kernels``.

    Parameters
    ----------
    argument : str
        A file of ``nni-latency learn kernels``, and one of ``nni-latency learn kernels --fusion all``; without the
        second, the file ``fusion.PLATFORM.json`` beside the first.

    Raises
    ------
    InvalidValueError
        If there are no rules.
    MismatchError
        If the rules are those of another runtime.
    FileFormatError
        If a file cannot be read.
    """
    first, second = _two_sources(needed(argument, "kernels:PREDICTORS"))
    return _kernel_estimator(load_kernel_predictors(first), first, second)


def _kernel_estimator(predictors: kernels.KernelPredictors, first: str, second: str = "") -> estimators.Estimator:
    costs = kernels.PredictedKernels(predictors)
    rules = Path(second) if second else Path(first).with_name(f"fusion.{costs.platform.id}.json")
    if not is_file(rules):
        runtime = costs.platform.runtime
        raise InvalidValueError(
            f"There is no file {str(rules)!r} with the rules by which {runtime} makes kernels. Find them out with "
            f"'nni-latency learn kernels --fusion all', or name them: kernels:{first},RULES"
        )
    return estimators.KernelEstimator(fusion.read_rules(rules, costs.platform), costs, constant=costs.constant)


def load_energy(argument: str) -> estimators.Estimator:
    """Make an estimator of ``MODEL,DEVICE,metric=NAME``, the argument of ``energy``.

    Parameters
    ----------
    argument : str
        A file of ``nni-latency learn energy``; one of its devices, which may be left out where there is one alone, or
        the facts of another one, as in ``flops=1e13,bandwidth=6e11,power=165,rest=30,launch=1e-5``; and what is
        estimated, ``metric=energy``, which is the default, or ``metric=latency``.

    Raises
    ------
    InvalidValueError
        If it is not of this form, or the model does not know the device.
    FileFormatError
        If the file cannot be read.
    """
    path, *parts = split_sources(needed(argument, "energy:MODEL,DEVICE"))
    given = dict(part.partition("=")[::2] for part in parts if "=" in part)
    return _portable_estimator(
        energy.PortableModel.load(path), path, [part for part in parts if "=" not in part], given
    )


def _portable_estimator(
    model: energy.PortableModel, path: str, parts: Sequence[str] = (), facts: Mapping[str, str] = MappingProxyType({})
) -> estimators.Estimator:
    names, given = list(filter(None, parts)), dict(facts)
    metric = given.pop("metric", "energy")
    if given and not names:
        return energy.PortableEstimator(model, _device_facts(given), metric=metric)  # type: ignore[arg-type]
    names = names or list(model.devices_)
    if len(names) != 1 or given:
        known = ", ".join(model.devices_) or "none, so give facts"
        raise InvalidValueError(
            f"The estimator 'energy' takes a file and one device, or its facts: energy:{path},DEVICE. "
            f"It knows: {known}."
        )
    return energy.PortableEstimator(model, names[0], metric=metric)  # type: ignore[arg-type]


def _device_facts(given: Mapping[str, str]) -> energy.DeviceFacts:
    try:
        return energy.DeviceFacts(**{name: float(number) for name, number in given.items()})
    except (TypeError, ValueError) as error:
        if isinstance(error, InvalidValueError):
            raise
        raise InvalidValueError(
            "The facts of a device are flops, bandwidth, power, rest and launch, each with a number in SI units, as in "
            f"flops=1e13,bandwidth=6e11,power=165,rest=30,launch=1e-5. Got {', '.join(given)}."
        ) from error


def needed(argument: str, form: str) -> str:
    """Return the argument of an estimator that does nothing without one; `InvalidValueError` where there is none."""
    if not argument.strip():
        raise InvalidValueError(f"The estimator {form.partition(':')[0]!r} needs to know which file. Write {form}.")
    return argument


def _two_sources(argument: str) -> tuple[str, str]:
    first, *rest = split_sources(argument, 2)
    return first, "".join(rest)


#: Kinds of files that are tables, and those of which an estimator is made.
_TABLES = ("nni_latency.lookup_table",)
_ESTIMATORS = (
    *_TABLES,
    "nni_latency.acts",
    "nni_latency.transfer",
    "nni_latency.kernels",
    "nni_latency.energy",
)


def load_kernel_predictors(path: str | Path) -> kernels.KernelPredictors:
    """Load predictors of kernels, those of plugins too.

    Raises
    ------
    FileFormatError
        As for `nni_latency.kernels.KernelPredictors.load`.
    PluginError
        As for `load_kernel_types`.
    """
    return kernels.KernelPredictors.load(path, types=load_kernel_types())


def load_kernel_types() -> Mapping[str, kernels.KernelType]:
    """Return every kernel type by name: those of the catalogue, and those of plugins.

    Raises
    ------
    PluginError
        If a plugin fails to make one, or makes something else.
    """
    found = dict(kernels.kernel_types())
    for name, registration in load_registry().kernels.items():
        found[name] = registration.make()
    return found


def file_of(source: str | os.PathLike[str]) -> Path | None:
    """Return the file that the source means: one that exists, one that ships, or what looks like a path.

    Raises
    ------
    UnknownNameError
        If it is ``pretrained``, and no predictor ships with this installation.
    """
    text = os.fspath(source)
    name = text.partition(":")[0]
    if is_file(text):
        return Path(text)
    shipped = graphs.shipped_predictor() if text == graphs.PRETRAINED else tables.shipped_table(text)
    looks_like_path = text.endswith((".json", ".safetensors")) or os.sep in name or not isinstance(source, str)
    return Path(text) if shipped is None and looks_like_path and name not in load_registry().estimators else shipped


def _from_plugin(source: str, missing: estimators.Missing | None) -> estimators.Estimator:
    name, _, argument = source.partition(":")
    try:
        registration = load_registry().find("estimator", name)
    except UnknownNameError as error:
        # Files and the tables that ship have a dot in their names, estimators have none.
        kinds = "" if "." in name else f"{error} "
        raise UnknownNameError(
            f"{kinds}There is no file {source!r}, and no shipped table of that name. {tables.LIST_SHIPPED}"
        ) from error
    estimator: estimators.Estimator = registration.make(argument)
    if missing is not None and isinstance(estimator, estimators.TableEstimator):
        if estimator.addends:
            weights, parts = zip(*estimator.addends, strict=True)
            return estimators.TableEstimator.weighted([part.table for part in parts], weights, missing=missing)
        return estimators.TableEstimator(estimator.table, missing=missing)
    return estimator
