# SPDX-License-Identifier: Apache-2.0
"""Samples of any space: drawing, checking and reading them, and a space that is measured by samples."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from nni_latency.errors import InvalidValueError, listed
from nni_latency.files import naming, readable
from nni_latency.spaces._fbnet_geometry import read_saved
from nni_latency.spaces._finding import reference_of
from nni_latency.spaces._networks import example_inputs_of, network_of
from nni_latency.spaces._nni import LayerChoice, ModelSpace, SampleValidationError
from nni_latency.spaces._varying import TooManyChoicesError, as_key
from nni_latency.tables import SpaceReference, sample_text

#: A sample of a space, ``{label: choice}``, as NNI understands it.
Sample = dict[str, Any]

#: So many draws in a row that are invalid, or known already, end the drawing.
_MOST_TRIES = 2000

#: Networks that are timed in every round.
_REFERENCES = 4

#: Added to the seed, so that what is drawn to check a table is not what it was measured with.
_OFFSET = 1_000_003


def draw_samples(space: Any, n: int, random_state: int | np.random.RandomState = 0) -> list[Sample]:
    """Draw valid samples of a space, all of them different.

    Parameters
    ----------
    space : ModelSpace
        Any space. It is not changed, and nothing is built.
    n : int
        How many; a small space may have fewer.
    random_state : int or RandomState, default=0
        Seed; the same one gives the same samples in every process, whatever the global random state. The first ones
        do not depend on `n`.

    Returns
    -------
    list of dict
        ``{label: choice}`` with every label of the space.

    Raises
    ------
    InvalidValueError
        If it is not a model space, has no choices, or no valid sample could be found.
    """
    mutables = labels_of(space)
    generator = random_state if isinstance(random_state, np.random.RandomState) else np.random.RandomState(random_state)
    found: dict[str, Sample] = {}
    tries = 0
    while len(found) < n and tries < _MOST_TRIES:
        sample = _draw(space, mutables, generator)
        tries += 1
        if sample is not None and found.setdefault(sample_text(sample), sample) is sample:
            tries = 0
    if n and not found:
        raise InvalidValueError(f"No valid sample of {type(space).__name__} was found in {_MOST_TRIES} draws.")
    return list(found.values())


def check_sample(space: Any, sample: Mapping[str, Any]) -> Sample:
    """Check a sample against a space.

    Parameters
    ----------
    space : ModelSpace
        Any space.
    sample : mapping
        ``{label: choice}``. What a constraint of the space derives of other choices may be left out.

    Returns
    -------
    dict
        The sample with the space's own values, where JSON has turned tuples into lists, and with what constraints
        derive.

    Raises
    ------
    InvalidValueError
        If labels are missing or unknown, a choice is none of the label's, or a constraint is not kept.
    """
    mutables = labels_of(space)
    unknown = [str(label) for label in sample if label not in mutables]
    if unknown:
        raise InvalidValueError(
            f"The sample has labels that {type(space).__name__} does not have: {listed(unknown)}. "
            f"It has: {listed(mutables)}."
        )
    missing = [label for label, mutable in mutables.items() if label not in sample and _is_drawn(mutable)]
    if missing:
        raise InvalidValueError(f"The sample has no choice for: {listed(missing)}.")
    checked = {label: _own_value(label, mutables[label], value) for label, value in sample.items()}
    error = space.check_contains(checked)
    if error is not None:
        raise InvalidValueError(f"The sample is not one of {type(space).__name__}: {_one_line(error)}")
    return checked


def name_choices(space: Any, sample: Mapping[str, Any]) -> dict[str, str]:
    """Say in words what a sample chooses.

    Parameters
    ----------
    space : ModelSpace
        Any space.
    sample : mapping
        ``{label: choice}``.

    Returns
    -------
    dict
        ``{label: text}``. A candidate layer that only has a number is named by its class as well.
    """
    layers = {module.label: module for module in space.modules() if isinstance(module, LayerChoice)}
    names = {}
    for label, value in sample.items():
        is_number = label in layers and isinstance(value, int | str) and str(value).isdecimal()
        names[label] = f"{value} ({type(layers[label][value]).__name__})" if is_number else str(value)
    return names


def read_sample(space: Any, path: str | Path) -> Sample:
    """Read a saved sample, a JSON object of labels and choices, and check it.

    Raises
    ------
    InvalidValueError
        If the file cannot be read, or does not hold a sample of the space.
    """
    with naming(path), readable(path, "a saved sample", InvalidValueError):
        return check_sample(space, read_saved(path))


def labels_of(space: Any) -> dict[str, Any]:
    """Return the labels of a space, each with its mutable.

    Raises
    ------
    InvalidValueError
        If it is not a model space, or has no choices.
    """
    if not isinstance(space, ModelSpace):
        raise InvalidValueError(f"The space must be an NNI model space. Got {type(space).__name__}.")
    try:
        mutables: dict[str, Any] = space.simplify()
    except ValueError as error:  # two mutables of one label that are not equal
        raise InvalidValueError(f"The space {type(space).__name__} is not well made: {_one_line(error)}") from error
    if not mutables:
        raise InvalidValueError(f"The space {type(space).__name__} has no choices: there is nothing to search.")
    return mutables


def choices_of(space: Any) -> dict[str, list[Any]]:
    """List the labels of a space, each with its choices in the order of their indices.

    Raises
    ------
    InvalidValueError
        If it is not a model space, has no choices, or one that is not a plain list of values.
    """
    mutables = labels_of(space)
    for label, mutable in mutables.items():
        # A choice of several values (NNI's InputChoice, even of one input) has samples that are lists.
        if not hasattr(mutable, "values") or hasattr(mutable, "n_chosen"):
            raise InvalidValueError(f"The label {label!r} is not a choice among values but a {type(mutable).__name__}.")
    return {label: list(mutable.values) for label, mutable in mutables.items()}


def list_choices(space: Any) -> tuple[dict[str, tuple[Any, ...]], Callable[[dict[str, Any]], dict[str, Any]]]:
    """List the choices of every label, hashable, and return what turns such a sample into NNI's form.

    Labels without values, such as constraints, are left out.

    Raises
    ------
    TooManyChoicesError
        If a label has no finite list of values.
    """
    values: dict[str, tuple[Any, ...]] = {}
    raws: dict[str, dict[Any, Any]] = {}
    for label, mutable in space.simplify().items():
        if not hasattr(mutable, "values"):
            if hasattr(mutable, "low") or not hasattr(mutable, "freeze"):
                raise TooManyChoicesError(
                    f"The label {label!r} is not a choice among values but a {type(mutable).__name__}."
                )
            continue
        own = list(mutable.grid()) if hasattr(mutable, "n_chosen") else list(mutable.values)
        raws[label] = {as_key(value): value for value in own}
        values[label] = tuple(raws[label])

    def raw(sample: dict[str, Any]) -> dict[str, Any]:
        return {label: raws[label][value] for label, value in sample.items()}

    return values, raw


def _is_drawn(mutable: Any) -> bool:
    """Whether a label stands for a choice, and not for a constraint among others."""
    return hasattr(mutable, "values") or hasattr(mutable, "low")


def _draw(space: Any, mutables: Mapping[str, Any], generator: np.random.RandomState) -> Sample | None:
    sample: Sample = {}
    try:
        for mutable in mutables.values():
            if _is_drawn(mutable):
                mutable.random(sample, generator)
        # A constraint may add to the sample what it derives of it.
        return None if space.check_contains(sample) is not None else sample
    except SampleValidationError:
        return None


def _own_value(label: str, mutable: Any, value: Any) -> Any:
    """Return the space's own value that is equal to a given one as JSON."""
    if not hasattr(mutable, "values"):
        return value
    several = hasattr(mutable, "n_chosen")
    if several and not isinstance(value, (list, tuple)):
        raise InvalidValueError(f"The choice of {label!r} must be a list of {listed(mutable.values)}. Got {value!r}.")
    known = {json.dumps(own, default=str): own for own in mutable.values}
    taken = []
    for item in value if several else [value]:
        own = known.get(json.dumps(item, default=str), item)
        if own not in mutable.values:
            raise InvalidValueError(f"The choice of {label!r} must be one of {listed(mutable.values)}. Got {item!r}.")
        taken.append(own)
    return taken if several else taken[0]


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


@dataclass(frozen=True)
class SampledSpace:
    """A space whose networks are drawn, as `nni_latency.tables.measure_networks` takes it.

    Parameters
    ----------
    model_space : ModelSpace
        Any space.
    input_shape : tuple of int
        Shape of the networks' input, batch first.
    known : sequence of mapping, default=()
        Samples that a table was measured with. Reference networks are among them; none of them is drawn.
    """

    model_space: Any = field(repr=False)
    input_shape: tuple[int, ...]
    known: Sequence[Mapping[str, Any]] = field(default=(), repr=False)

    @classmethod
    def of(cls, model_space: Any, batch_size: int = 1, input_size: int | None = None) -> SampledSpace:
        """Use the input that a space is made for, or another image size."""
        return cls(model_space, tuple(example_inputs_of(model_space, batch_size, input_size).shape))

    @cached_property
    def space(self) -> SpaceReference:
        """Which space it is."""
        return reference_of(self.model_space)

    @property
    def reference(self) -> Mapping[str, Any]:
        """The first of the reference networks."""
        return self.references[0]

    @cached_property
    def references(self) -> tuple[Mapping[str, Any], ...]:
        """Four networks that are fixed for the space: of those known, spread over them, or else drawn."""
        known = list(self.known) or draw_samples(self.model_space, _REFERENCES)
        places = dict.fromkeys(place * len(known) // _REFERENCES for place in range(_REFERENCES))
        return tuple(known[place] for place in places)

    def network_of(self, selection: Mapping[str, Any]) -> Callable[[], Any]:
        """Return a builder of a network; it can be sent to another process."""
        return network_of(self.model_space, selection)

    def draw(self, n: int, seed: int = 0) -> dict[str, Sample]:
        """Draw networks that no table was measured with, ``random 1`` and so on; a small space may have fewer."""
        known = {sample_text(sample) for sample in self.known}
        drawn = draw_samples(self.model_space, n + len(known), seed + _OFFSET)
        new = [sample for sample in drawn if sample_text(sample) not in known][:n]
        return {f"random {index + 1}": sample for index, sample in enumerate(new)}
