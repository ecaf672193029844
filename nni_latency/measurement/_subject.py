# SPDX-License-Identifier: Apache-2.0
"""`Subject`: anything that can be measured, with its factory and inputs; and how it is sent to another process."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from nni_latency.errors import InvalidValueError, MeasurementError

#: Factory of a module.
Build = Callable[[], Any]

Kind = Literal["candidate", "operator", "kernel", "block", "network"]


@dataclass(frozen=True)
class Subject:
    """Anything that can be measured. Immutable.

    Parameters
    ----------
    key : str
        Identifies the subject within a campaign; the same in every run of the campaign.
    build : callable
        Factory of the module, which is sent to worker processes by cloudpickle.
    inputs : tuple of int or Inputs
        Shape of a single input, batch first; or positional and keyword tensors of any dtype. A subject that runs after
        another one takes the output of that, and these inputs only when it is loaded.
    kind : {"candidate", "operator", "kernel", "block", "network"}, default="network"
        Kind of the subject.
    digest : str, default=""
        Identifies its computation in all campaigns: an `op_key`, or the digest of a network's graph.
    specification : mapping
        Its description as plain values for a store: operators, attributes, choices.

    Examples
    --------
    >>> subject = Subject("stem/conv", dict, (1, 3, 8, 8), "candidate")
    >>> subject.key, subject.build()
    ('stem/conv', {})
    """

    key: str
    build: Build = field(compare=False, repr=False)
    inputs: Any = (1,)
    kind: Kind = "network"
    digest: str = ""
    specification: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def of_module(cls, module: Any, inputs: Any, key: str = "network", **options: Any) -> Subject:
        """Make a subject of an existing network; every bench gets a copy of it.

        Parameters
        ----------
        module : nn.Module
            The network, whose weights must have values; lazy modules are initialised in a copy.
        inputs : tuple of int, or Tensor, sequence or dict
            Shape of a single input, batch first; or tensors as for `nni_latency.operators.trace`.
        key : str, default="network"
            Key of the subject.
        **options
            Other fields of the subject.

        Raises
        ------
        InvalidValueError
            If a weight has no values, so that the network cannot be run.
        """
        import torch

        from nni_latency.operators import initialised

        frozen = _frozen(inputs)
        module = initialised(module, torch.zeros(frozen) if isinstance(frozen, tuple) else frozen)
        weights = [name for name, weight in (*module.named_parameters(), *module.named_buffers()) if weight.is_meta]
        if weights:
            raise InvalidValueError(
                f"{type(module).__name__} cannot be measured: {weights[0]!r} has no values (it is on torch's device "
                "'meta'). Move the network to the CPU with 'to_empty' and fill it."
            )
        return cls(key, partial(copy.deepcopy, module), frozen, **options)

    @property
    def record(self) -> dict[str, Any]:
        """Plain values for a store."""
        return {"key": self.key, "kind": self.kind, "digest": self.digest, "specification": dict(self.specification)}


#: Subjects that run in sequence as one network, each on the output of the previous one.
Chain = tuple[Subject, ...]


def compose(builds: Sequence[Build]) -> Any:
    """Make a network of parts that run in sequence."""
    from torch import nn

    return nn.Sequential(*(build() for build in builds))


def _frozen(inputs: Any) -> Any:
    if isinstance(inputs, Sequence) and all(isinstance(size, int) for size in inputs):
        return tuple(inputs)
    from nni_latency.operators import freeze_inputs

    return freeze_inputs(inputs, device=None)


def keys_of(subjects: Iterable[Subject]) -> tuple[str, ...]:
    """Return the keys of subjects."""
    return tuple(subject.key for subject in subjects)


def pack_subject(subject: Subject) -> bytes:
    """Return a subject as bytes, to be sent to another process.

    Raises
    ------
    MeasurementError
        If it cannot be serialised.
    """
    return pack(subject, f"The subject {subject.key!r}")


def unpack_subject(packed: bytes) -> Subject:
    """Return the subject that `pack_subject` packed.

    Raises
    ------
    MeasurementError
        If it cannot be restored in this process.
    """
    subject: Subject = unpack(packed)
    return subject


def pack(content: Any, what: str) -> bytes:
    """Return any object as bytes; raise `MeasurementError`, which names it as `what`, if that fails."""
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
    """Return the object that `pack` packed."""
    import cloudpickle

    try:
        return cloudpickle.loads(payload)
    except Exception as error:  # user modules may fail in any way when they are imported
        raise MeasurementError(
            f"What is measured cannot be made in a worker process: {type(error).__name__}: {error}"
        ) from error
