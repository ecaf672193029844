# SPDX-License-Identifier: Apache-2.0
"""`Subject`: anything that can be measured, how it is built, what it is run on, and how it reaches another process."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from nni_latency.errors import InvalidValueError, MeasurementError

#: Makes a module.
Build = Callable[[], Any]

Kind = Literal["candidate", "operator", "kernel", "block", "network"]


@dataclass(frozen=True)
class Subject:
    """Anything that can be measured. Immutable.

    Parameters
    ----------
    key : str
        Tells it from the other subjects of a campaign; the same in every run of it.
    build : callable
        Makes the module. It reaches worker processes by cloudpickle.
    inputs : tuple of int or Inputs
        Shape of its one input, batch first; or positional and keyword tensors of any dtype. A subject that runs behind
        another one takes what that returns, and these inputs only when it is loaded.
    kind : {"candidate", "operator", "kernel", "block", "network"}, default="network"
        What it is.
    digest : str, default=""
        Identifies what it computes in every campaign: an `op_key`, or the digest of a network's graph.
    specification : mapping
        What it is, as plain values for a store: operators, attributes, choices.

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
        """Make a subject of a network that exists; every bench gets a copy of it.

        Parameters
        ----------
        module : nn.Module
            The network, with values in all of its weights; lazy modules are initialised in a copy.
        inputs : tuple of int, or Tensor, sequence or dict
            Shape of its one input, batch first; or tensors as for `nni_latency.operators.trace`.
        key : str, default="network"
            As above.
        **options
            Other fields.

        Raises
        ------
        InvalidValueError
            If weights have no values, so that it cannot be run.
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
        """What a store keeps of it: plain values."""
        return {"key": self.key, "kind": self.kind, "digest": self.digest, "specification": dict(self.specification)}


#: Subjects that run one after another as one network, each on what the one before returned.
Chain = tuple[Subject, ...]


def compose(builds: Sequence[Build]) -> Any:
    """Make a network of parts that run one after another.

    Parameters
    ----------
    builds : sequence of callable
        What makes each part.

    Returns
    -------
    nn.Sequential
    """
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
