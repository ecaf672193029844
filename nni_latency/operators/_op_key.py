"""Reading the key of an operator back into the operator."""

from __future__ import annotations

import json
import math
import re

from nni_latency.errors import InvalidValueError
from nni_latency.operators._op_spec import AttributeValue, OpSpec

_STRING = r'"(?:[^"\\]|\\.)*"'
#: The key of an operator.
OP_KEY = re.compile(
    rf"(?P<kind>[^\s()@]+)\((?P<attributes>(?:[^()\"]|{_STRING})*)\)@(?P<shapes>[0-9x+]*):(?P<dtype>\w+)"
)
_ATTRIBUTE = re.compile(rf"(?P<name>\w+)=(?P<value>{_STRING}|\[\d*\]|[^,]*)(?:,|$)")

#: Characters of the smallest number of 64 bits.
_MOST_CHARACTERS = len(str(-(2**63)))


def parse_op_keys(text: str) -> list[OpSpec]:
    """Read operators from their keys, as `OpSpec.op_key` writes them, separated by spaces.

    Raises
    ------
    InvalidValueError
        If there is anything else in the text.

    Examples
    --------
    >>> op = OpSpec.of("conv2d", [(1, 3, 8, 8)], out_channels=4, kernel_size=(3, 1), stride=1, groups=1, bias=True)
    >>> parse_op_keys(op.op_key)[0].op_key == op.op_key
    True
    """
    found, place = [], 0
    while place < len(text):
        match = OP_KEY.match(text, place)
        if match is None:
            raise InvalidValueError(f"The key of an operator cannot be read: {text[place:][:60]!r}.")
        found.append(_op_of(match))
        place = match.end() + 1
    return found


def _op_of(match: re.Match[str]) -> OpSpec:
    try:
        attributes = {item["name"]: _value(item["value"]) for item in _ATTRIBUTE.finditer(match["attributes"])}
        shapes = [_sizes(shape) for shape in match["shapes"].split("+")] if match["shapes"] else []
    except ValueError as error:
        raise InvalidValueError(
            f"The key of an operator has a number or a text that cannot be read: {match[0][:60]!r}."
        ) from error
    return OpSpec.of(match["kind"], shapes, dtype=match["dtype"], **attributes)


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(map(_whole, text.split("x"))) if text else ()


def _whole(text: str) -> int:
    """Read a whole number of 64 bits, as frameworks take them; `ValueError` for a larger one."""
    if len(text) > _MOST_CHARACTERS or not -(2**63) <= (number := int(text)) < 2**63:
        raise ValueError(text)
    return number


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(text)
    return number


def _value(text: str) -> AttributeValue:
    """Read a value; true and false were written as 1 and 0."""
    if text.startswith('"'):
        return str(json.loads(text))
    if text.startswith("["):
        return (_whole(text[1:-1]),) if text != "[]" else ()
    if re.fullmatch(r"-?\d+(x-?\d+)+", text):
        return tuple(map(_whole, text.split("x")))
    if re.fullmatch(r"-?\d+", text):
        # Bounds such as the largest float are written without an exponent, too.
        return _whole(text) if len(text) < _MOST_CHARACTERS else _finite(text)
    try:
        return float(text)
    except ValueError:
        return text
