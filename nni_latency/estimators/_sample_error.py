"""The error message for a sample that has no cost."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from nni_latency.errors import InvalidValueError, LatencyError, MissingEntryError, listed
from nni_latency.estimators._derived import Derived

_CLASH = "its choices do not go together"


def sample_error(
    sample: object,
    choices: Mapping[str, Collection[Any]],
    reason: Exception | str = _CLASH,
    derived: Sequence[Derived] = (),
) -> LatencyError:
    """Make the error that says what is wrong with a sample: a choice, a label without one, or all of it together.

    Parameters
    ----------
    sample : mapping
        ``{label: choice}``.
    choices : mapping of str to collection
        What there is to choose from, by label.
    reason : Exception or str, optional
        Why the choices do not go together, if each of them is one of the space; a `LookupError` says nothing of that.
    derived : sequence of Derived, default=()
        Labels that are not the sample's own, but follow from it.

    Returns
    -------
    MissingEntryError or InvalidValueError
        To be raised.

    Examples
    --------
    >>> str(sample_error({"a": 3}, {"a": (1, 2), "b": (1, 2)}))
    "The choice of 'a' must be one of 1, 2. Got 3."
    >>> str(sample_error({"a": 2}, {"a": (1, 2), "b": (1, 2)}))
    "The sample has no choice for 'b'."
    """
    if not isinstance(sample, Mapping):
        return InvalidValueError(f"A sample must be a mapping, {{label: choice}}. Got {type(sample).__name__}.")
    made = {label for item in derived for label in item.outputs}
    own = {label: known for label, known in choices.items() if label not in made}
    for label, known in own.items():
        # Compared one by one, because what a sample has may be no key of anything.
        if label in sample and sample[label] not in list(known):
            return MissingEntryError(f"The choice of {label!r} must be one of {listed(known)}. Got {sample[label]!r}.")
    absent = [repr(label) for label in own if label not in sample]
    if absent:
        return MissingEntryError(f"The sample has no choice for {listed(absent)}.")
    why = _CLASH if isinstance(reason, LookupError) else str(reason).removesuffix(".")
    return InvalidValueError(f"The sample is no network of the space: {why}.")
