"""What reaches a worker process, as bytes: by cloudpickle, so that it may be defined in a script or a notebook."""

from __future__ import annotations

from typing import Any

from nni_latency.errors import MeasurementError
from nni_latency.measurement._subject import Subject


def pack_subject(subject: Subject) -> bytes:
    """Return a subject as bytes that reach another process.

    Raises
    ------
    MeasurementError
        If it cannot be sent there.
    """
    return pack(subject, f"The subject {subject.key!r}")


def unpack_subject(packed: bytes) -> Subject:
    """Return the subject of which `pack_subject` made bytes.

    Raises
    ------
    MeasurementError
        If it cannot be made in this process.
    """
    subject: Subject = unpack(packed)
    return subject


def pack(content: Any, what: str) -> bytes:
    """Return anything as bytes; `MeasurementError` names what cannot be sent."""
    import cloudpickle

    try:
        packed: bytes = cloudpickle.dumps(content)
    except Exception as error:  # user objects may refuse in any way
        raise MeasurementError(
            f"{what} cannot be sent to a worker process ({type(error).__name__}: {error}). "
            "Define it at the top level of a module."
        ) from error
    return packed


def unpack(payload: bytes) -> Any:
    """Return what `pack` made bytes of."""
    import cloudpickle

    try:
        return cloudpickle.loads(payload)
    except Exception as error:  # user modules may fail in any way when they are imported
        raise MeasurementError(
            f"What is measured cannot be made in a worker process: {type(error).__name__}: {error}"
        ) from error
