"""Reading an architecture that a person names: a published network, a list, or a saved sample."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from nni_latency.errors import InvalidValueError, listed
from nni_latency.files import is_file, naming, readable
from nni_latency.spaces._fbnet_geometry import PUBLISHED_NETWORKS
from nni_latency.tables import MeasurePlan
from nni_latency.units import number_of, whole_number


def parse_architecture(text: str, plan: MeasurePlan) -> dict[str, str]:
    """Read an architecture of a space.

    Parameters
    ----------
    text : str
        The name of a published network; indices or names of the candidates separated by commas, one per searched
        layer; or the path of a saved NNI sample (JSON).
    plan : MeasurePlan
        The space's plan.

    Returns
    -------
    dict of str to str
        ``{layer: choice}`` for every layer of the plan, the fixed ones included.

    Raises
    ------
    InvalidValueError
        If the text is none of these, or does not fit the space.

    Examples
    --------
    >>> from nni_latency.spaces import FBNetSpace
    >>> plan = FBNetSpace(depth=0.25).measure_plan()
    >>> parse_architecture("8,k3_e1,2,skip,4,5,6", plan)["layer3"]
    'skip'
    """
    if text.lower() in PUBLISHED_NETWORKS:
        return _published(text.lower(), plan)
    if is_file(text):
        with naming(text), readable(text, "a saved sample", InvalidValueError):
            return _saved(Path(text), plan)
    parts = [part.strip() for part in text.split(",")]
    if len(parts) != len(plan.searched):
        raise InvalidValueError(
            f"An architecture must be a published network ({', '.join(PUBLISHED_NETWORKS)}), the file of a saved "
            f"sample, or {number_of(len(plan.searched), 'index or name', 'indices or names')} separated by commas. "
            f"Got {_shorten(text)!r}."
        )
    chosen = {layer.name: part for layer, part in zip(plan.searched, parts, strict=True)}
    return complete_selection(chosen, plan)


def complete_selection(sample: dict[str, Any], plan: MeasurePlan) -> dict[str, str]:
    """Check a sample against a plan, turn indices into names and add the fixed layers.

    Raises
    ------
    InvalidValueError
        If it lacks a layer, or has a layer or a choice that the plan does not have.
    """
    unknown = [str(name) for name in sample if name not in {layer.name for layer in plan.layers}]
    if unknown:
        raise InvalidValueError(f"The architecture has labels that the space does not have: {listed(unknown)}.")
    selection = {}
    for layer in plan.layers:
        if layer.name not in sample and layer.searched:
            raise InvalidValueError(f"The architecture has no choice for {layer.name!r}.")
        selection[layer.name] = _choice(layer.name, str(sample.get(layer.name, layer.default)), list(layer.candidates))
    return selection


def _choice(layer: str, text: str, names: list[str]) -> str:
    if text in names:
        return text
    number = whole_number(text)
    if number is not None and number < len(names):
        return names[number]
    raise InvalidValueError(
        f"The choice of {layer!r} must be one of {', '.join(names)}, or an index up to {len(names) - 1}. Got {text!r}."
    )


def published_selections(plan: MeasurePlan) -> dict[str, dict[str, str]]:
    """Return the published networks of the FBNet space that have as many layers as the plan."""
    heads = next(layer for layer in plan.layers if layer.name == "head").candidates
    found = {}
    for name, network in PUBLISHED_NETWORKS.items():
        if len(plan.searched) == len(network.choices):
            chosen = {layer.name: choice for layer, choice in zip(plan.searched, network.choices, strict=True)}
            head = str(network.head_channels)
            found[name] = complete_selection({**chosen, **({"head": head} if head in heads else {})}, plan)
    return found


def _published(name: str, plan: MeasurePlan) -> dict[str, str]:
    if name not in plan.published:
        raise InvalidValueError(
            f"The network {name!r} has {number_of(len(PUBLISHED_NETWORKS[name].choices), 'layer')} of the full FBNet "
            f"space; {plan.space} has {len(plan.searched)}."
        )
    return dict(plan.published[name])


def _saved(path: Path, plan: MeasurePlan) -> dict[str, str]:
    sample = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(sample, dict):
        raise InvalidValueError(
            f"The saved sample {str(path)!r} must be an object of labels and choices. Got {type(sample).__name__}."
        )
    return complete_selection(sample, plan)


def _shorten(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}..."
