from ._format import DocumentFormat, explain, json_text, render
from ._parts import NamedPlatformDocument, OperatorDocument, PlatformDocument, Shape, StrictDocument
from ._records import RECORD, InFile, NamedPlatform, Operator, ShapeTuple, Vector, line, plain
from ._registry import KINDS, load
from ._saved_file import SavedFile

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
