from ._format import DocumentFormat, explain, json_text, render
from ._parts import NamedPlatformDocument, OperatorDocument, PlatformDocument, Shape, StrictDocument
from ._registry import KINDS, load
from ._saved_file import SavedFile

__all__ = [
    "KINDS",
    "DocumentFormat",
    "NamedPlatformDocument",
    "OperatorDocument",
    "PlatformDocument",
    "SavedFile",
    "Shape",
    "StrictDocument",
    "explain",
    "json_text",
    "load",
    "render",
]
