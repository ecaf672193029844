# SPDX-License-Identifier: Apache-2.0
"""What a search has come to, in one file: the same search goes on from there after an interruption."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn

from nni_latency.errors import FileFormatError, MismatchError, OutputError, first_line, listed
from nni_latency.files import remove, replacing

#: Key of the JSON among the metadata of the file, and what the JSON says of itself.
_KEY, _HEAD = "nni_latency", {"format": "nni_latency.checkpoint", "version": 1}

#: What the names of tensors begin with.
_WEIGHTS, _OPTIMIZER, _RANDOM, _RANDOM_CUDA = "weights/", "optimizer", "random", "random/cuda"

#: Differences that a message lists at most.
_LISTED = 5


@dataclass(frozen=True)
class SearchState:
    """How far a search has come.

    Parameters
    ----------
    stage : {"search", "final"}
        Whether it is still searched, or the network found learns on.
    done : int
        Epochs of the stage, or trials, that are over.
    history : tuple of dict
        Fields of every `Epoch` or `Trial`.
    tensors : mapping of str to Tensor
        What `tensors_of` returned.
    sample : dict, optional
        The network found.
    """

    stage: str
    done: int
    history: tuple[dict[str, Any], ...]
    tensors: Mapping[str, torch.Tensor]
    sample: dict[str, Any] | None = None


class Checkpoint:
    """The file that a search saves itself in after every epoch, or trial, and goes on from.

    It is a safetensors file: weights and the state of optimizers are tensors, the rest is JSON. Reading it runs no
    code. It is written whole or not at all.

    Parameters
    ----------
    path : str or Path
        The file.
    asked : mapping
        What identifies the search, as plain values. A file of another search is refused.

    Examples
    --------
    >>> checkpoint = Checkpoint("found/checkpoint.safetensors", {"target": 0.002, "epochs": 5})
    >>> result = run_search(space, digits, strategy, settings, checkpoint=checkpoint)          # doctest: +SKIP
    """

    def __init__(self, path: str | Path, asked: Mapping[str, Any]) -> None:
        self.path = Path(path)
        # As it comes out of the file.
        self.asked: dict[str, Any] = json.loads(json.dumps(dict(asked)))

    @cached_property
    def state(self) -> SearchState | None:
        """What the file held when it was first asked for; None if there is no file.

        Raises
        ------
        FileFormatError
            If it is not a checkpoint.
        MismatchError
            If it is of another search.
        """
        if not self.path.exists():
            return None
        content, tensors = self._read()
        try:
            before = dict(content["asked"])
            state = SearchState(
                str(content["stage"]), int(content["done"]), tuple(map(dict, content["history"])), tensors,
                None if content["sample"] is None else dict(content["sample"]),
            )  # fmt: skip
        except (KeyError, TypeError, ValueError) as error:
            raise FileFormatError(f"{str(self.path)!r} is not a checkpoint of a search: {error!r}.") from error
        self._check(before)
        return state

    def save(self, state: SearchState) -> None:
        """Write the file.

        Raises
        ------
        OutputError
            If it cannot be written. An older file then stays as it was.
        """
        content = {
            **_HEAD,
            "asked": self.asked,
            "stage": state.stage,
            "done": state.done,
            "history": state.history,
            "sample": state.sample,
        }
        with replacing(self.path) as temporary:
            try:
                save_file(dict(state.tensors), temporary, metadata={_KEY: json.dumps(content)})
            except SafetensorError as error:
                raise OutputError(f"Cannot write {str(self.path)!r}: {error}.") from error

    def remove(self) -> None:
        """Remove the file, and what an interrupted writing of it left."""
        remove(self.path)

    def _read(self) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
        try:
            with safe_open(self.path, "pt") as file:
                content = json.loads((file.metadata() or {})[_KEY])
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            if {name: content[name] for name in _HEAD} != _HEAD:
                raise ValueError("it is of another kind or version")
        except (SafetensorError, OSError, KeyError, TypeError, ValueError, RecursionError, MemoryError) as error:
            raise FileFormatError(f"{str(self.path)!r} is not a checkpoint of a search: {error}.") from error
        return content, tensors

    def _check(self, before: Mapping[str, Any]) -> None:
        differences = [
            f"{name}={before.get(name)} in it, {name}={self.asked.get(name)} requested"
            for name in {**self.asked, **before}
            if before.get(name) != self.asked.get(name)
        ]
        if differences:
            names = listed(differences, most=_LISTED, separator="; ")
            raise MismatchError(f"{str(self.path)!r} is of a search with other options: {names}.")


def tensors_of(module: nn.Module, optimizers: Iterable[torch.optim.Optimizer] = ()) -> dict[str, torch.Tensor]:
    """Return what a module and its optimizers have learned, and the state of the random numbers, by name.

    What an optimizer knows of a parameter stands under the parameter's name: NNI hands over the architecture parameters
    in another order in every process.
    """
    found = {f"{_WEIGHTS}{name}": value for name, value in module.state_dict().items()}
    names: dict[torch.Tensor, str] = {parameter: name for name, parameter in module.named_parameters()}
    for index, optimizer in enumerate(optimizers):
        for parameter, known in optimizer.state.items():
            found.update({f"{_OPTIMIZER}{index}/{names[parameter]}/{key}": value for key, value in known.items()})
    found[_RANDOM] = torch.get_rng_state()
    if torch.cuda.is_available():
        found[_RANDOM_CUDA] = torch.cuda.get_rng_state()
    # Clones, because parts of a supernet share their parameters, and the format does not.
    return {name: value.detach().cpu().contiguous().clone() for name, value in found.items()}


def put_back(
    tensors: Mapping[str, torch.Tensor], module: nn.Module, optimizers: Iterable[torch.optim.Optimizer] = ()
) -> None:
    """Give a module, its optimizers and the random numbers the state that `tensors_of` returned.

    Raises
    ------
    MismatchError
        If the tensors are those of another module.
    """
    parameters = dict(module.named_parameters())
    try:
        module.load_state_dict(_named(tensors, _WEIGHTS))
        for index, optimizer in enumerate(optimizers):
            for place, value in _named(tensors, f"{_OPTIMIZER}{index}/").items():
                name, _, key = place.rpartition("/")
                parameter = parameters[name]
                # Adam counts its steps on the CPU.
                optimizer.state[parameter][key] = value.to(parameter.device) if value.ndim else value
        put_back_random(tensors)
    except (RuntimeError, KeyError, TypeError) as error:
        raise MismatchError(f"The checkpoint is not of this network: {first_line(error)}") from error


def put_back_random(tensors: Mapping[str, torch.Tensor]) -> None:
    """Give the random numbers the state that `tensors_of` returned."""
    torch.set_rng_state(tensors[_RANDOM])
    if _RANDOM_CUDA in tensors and torch.cuda.is_available():
        torch.cuda.set_rng_state(tensors[_RANDOM_CUDA])


def _named(tensors: Mapping[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
