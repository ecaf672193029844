"""JSON files with a format and a version: how they are read and checked, and the parts that several of them have."""

from nni_latency.documents._format import DocumentFormat, explain, format_of, render
from nni_latency.documents._parts import (
    NamedPlatformDocument,
    OperatorDocument,
    PlatformDocument,
    Shape,
    StrictDocument,
)

__all__ = [
    "DocumentFormat",
    "NamedPlatformDocument",
    "OperatorDocument",
    "PlatformDocument",
    "Shape",
    "StrictDocument",
    "explain",
    "format_of",
    "render",
]
