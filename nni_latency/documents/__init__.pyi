from ._format import DocumentFormat, explain, format_of, json_text, render
from ._parts import NamedPlatformDocument, OperatorDocument, PlatformDocument, Shape, StrictDocument

__all__ = [
    "DocumentFormat",
    "NamedPlatformDocument",
    "OperatorDocument",
    "PlatformDocument",
    "Shape",
    "StrictDocument",
    "explain",
    "format_of",
    "json_text",
    "render",
]
