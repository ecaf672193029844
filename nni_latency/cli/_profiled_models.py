"""Models by name: a family's published network, one of torchvision, or a class or function of the user's own."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence

import nni_latency.graphs as graphs
import nni_latency.operators as operators
import nni_latency.profiling as profiling
from nni_latency.cli._model import load_class, make_inputs, make_network, names_a_class
from nni_latency.cli._supervision import user_code
from nni_latency.errors import InvalidValueError, UnknownNameError

#: Input of torchvision's networks, without the batch.
_PICTURE = "3,224,224"


def find_models(
    listed: Sequence[profiling.ListedModel], batch_size: int, inputs: tuple[str, ...], timeout: float
) -> Iterator[profiling.ProfiledModel]:
    """Make models, one after another.

    Parameters
    ----------
    listed : sequence of ListedModel
        Their names, and the shapes of their inputs where each has its own.
    batch_size : int
        Inputs of a run.
    inputs : tuple of str
        Shapes of the inputs of the others that come from no family.
    timeout : float
        How long the code of a user's network may take [s].

    Raises
    ------
    UnknownNameError
        If there is no model of a name.
    InvalidValueError
        If a network cannot be made, or does not take its inputs, or there are shapes that no model takes.
    """
    if inputs and all(_has_inputs(item) for item in listed):
        raise InvalidValueError(
            "--input is for networks of torchvision and of your own. The networks of families have inputs of their "
            "own, and so has every model here."
        )
    for item in listed:
        # What user code prints is not part of the result.
        limit = timeout if names_a_class(item.model) else 0.0
        with contextlib.redirect_stdout(sys.stderr), user_code(f"The code of {item.model!r}", limit):
            yield _find(item.model, batch_size, item.inputs or inputs)


def _has_inputs(item: profiling.ListedModel) -> bool:
    """Whether a model needs no shapes but its own."""
    named = profiling.plain_name(item.model) in profiling.published_names() and not names_a_class(item.model)
    return named or bool(item.inputs)


def _find(name: str, batch_size: int, inputs: tuple[str, ...]) -> profiling.ProfiledModel:
    if names_a_class(name):
        network = make_network(name, load_class(name), {})
        return profiling.own_model(name, network, make_inputs(inputs, batch_size))
    found = profiling.family_model(name, batch_size)
    if found is not None:
        return found
    vision = profiling.vision_names()
    if name not in vision:
        raise UnknownNameError(_unknown(name, vision))
    return profiling.vision_model(name, batch_size, _picture(inputs))


def _unknown(name: str, vision: Sequence[str]) -> str:
    """Say what there is instead of a model that there is not."""
    known = UnknownNameError.of("model", name, sorted({*graphs.families(), *profiling.published_names(), *vision}))
    more = "" if vision else "; those of torchvision, such as resnet50, after pip install 'nni_latency[vision]'"
    return f"{str(known).removesuffix('.')}{more}; and your own, as file.py:Class or package.module:function."


def _picture(inputs: tuple[str, ...]) -> tuple[int, ...]:
    (text, *rest) = inputs or (_PICTURE,)
    given = operators.InputShape.parse(text)
    shape = given.shape(1, rank=4)
    if rest or given.name or given.dtype or len(shape) != 4 or shape[0] != 1:
        raise InvalidValueError(
            f"A network of torchvision takes one picture, such as {_PICTURE}. Got {', '.join(inputs)!r}."
        )
    return shape[1:]
