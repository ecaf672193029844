# SPDX-License-Identifier: Apache-2.0
from ._format import DocumentFormat, explain, json_text, render
from ._parts import (
    RECORD,
    InFile,
    NamedPlatform,
    NamedPlatformDocument,
    Operator,
    OperatorDocument,
    PlatformDocument,
    Shape,
    ShapeTuple,
    StrictDocument,
    Vector,
    line,
    plain,
)
from ._registry import KINDS, SavedFile, load

__all__ = [
    "KINDS",
    "RECORD",
    "DocumentFormat",
    "InFile",
    "NamedPlatform",
    "NamedPlatformDocument",
    "Operator",
    "OperatorDocument",
    "PlatformDocument",
    "SavedFile",
    "Shape",
    "ShapeTuple",
    "StrictDocument",
    "Vector",
    "explain",
    "json_text",
    "line",
    "load",
    "plain",
    "render",
]
