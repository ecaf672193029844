"""The encoding of a space, however the space is given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from nni_latency.errors import InvalidValueError
from nni_latency.estimators.transfer._cell import CellEncoding, is_cell
from nni_latency.estimators.transfer._encoding import Encoding
from nni_latency.estimators.transfer._layers import LayeredSpace, LayerEncoding
from nni_latency.tables import LookupTable, MeasurePlan, SpaceReference, measure_plan_of

#: Name of the space of cells that needs no object.
CELLS = "nasbench201"


def encoding_of(space: Any, architectures: Any = None) -> Encoding:
    """Return the encoding of a space.

    Parameters
    ----------
    space : object
        An `Encoding`; a model space with a measure plan, a plan or a table; NNI labels with their choices, as a mapping
        or a model space; ``"nasbench201"``; or None for what the architectures look like.
    architectures : array-like, optional
        For a `space` of None: strings are cells of NAS-Bench-201, columns of ints are layers with choices up to the
        highest index.

    Raises
    ------
    InvalidValueError
        If it is none of these.
    """
    if isinstance(space, Encoding):
        return space
    if isinstance(space, str) and space.lower().replace("-", "") == CELLS:
        return CellEncoding()
    if isinstance(space, LookupTable):
        return LayerEncoding(LayeredSpace.of_table(space))
    if isinstance(space, LayeredSpace):
        return LayerEncoding(space)
    if isinstance(space, MeasurePlan):
        return LayerEncoding(LayeredSpace.of_plan(space))
    if hasattr(space, "measure_plan"):
        return LayerEncoding(LayeredSpace.of_plan(measure_plan_of(space)))
    if hasattr(space, "simplify"):
        choices = {label: list(mutable.values) for label, mutable in space.simplify().items()}
        return _of_choices(choices, SpaceReference.of_class(type(space)))
    if isinstance(space, Mapping):
        return _of_choices(space, None)
    if space is None:
        return _of_architectures(architectures)
    raise InvalidValueError(
        "The 'space' must be a model space, a measure plan, a mapping of labels to choices, 'nasbench201' or None. "
        f"Got {space!r}."
    )


def _of_choices(choices: Mapping[str, Any], reference: SpaceReference | None) -> Encoding:
    if is_cell(choices):
        return CellEncoding(choices)
    return LayerEncoding(LayeredSpace.of_choices(choices, reference))


def _of_architectures(architectures: Any) -> Encoding:
    array = np.asarray(architectures)
    if array.ndim == 1 and len(array) and isinstance(array[0], str):
        return CellEncoding()
    if array.ndim != 2 or not array.size or array.dtype.kind not in "iu" or array.min() < 0:
        raise InvalidValueError(
            "Without a 'space' the architectures must be an int array of shape (n, n_layers) with indices >= 0, or "
            f"cells of NAS-Bench-201 as strings. Got {array.dtype} of shape {array.shape}."
        )
    highest = array.max(axis=0).tolist()
    return _of_choices({f"layer{place}": range(top + 1) for place, top in enumerate(highest)}, None)
