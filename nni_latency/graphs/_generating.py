"""Members of families as ONNX files without weights."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from joblib import delayed

from nni_latency.errors import InvalidValueError
from nni_latency.files import write_atomically
from nni_latency.graphs._family import Family, families
from nni_latency.graphs._side_by_side import side_by_side
from nni_latency.operators import export_onnx, without_weights

#: A family, and the seed of a member.
Member = tuple[Family, int]


def save_onnx(family: Family, seed: int, path: str | Path, batch_size: int = 1) -> Path:
    """Write a member of a family as an ONNX file of some kB, without its weights.

    Parameters
    ----------
    family : Family
        Of which.
    seed : int
        Which member; 0 is the published network.
    path : str or Path
        Where to.
    batch_size : int, default=1
        Inputs of a run.

    Returns
    -------
    Path
        The file. `nni_latency.operators.onnx_network` fills it with random weights, so that it can be run.

    Raises
    ------
    MissingDependencyError
        If the package onnx is not installed.
    OutputError
        If the file cannot be written.
    """
    network = export_onnx(family.network(seed), [family.example_inputs(batch_size)])
    write_atomically(Path(path), without_weights(network.model).SerializeToString())
    return Path(path)


def generate_onnx(
    members: Sequence[Member], folder: str | Path, *, batch_size: int = 1, n_jobs: int | None = None
) -> Iterator[Path]:
    """Write members of families, ``FAMILY-SEED.onnx`` each; those that are there already are left alone.

    Parameters
    ----------
    members : sequence of (Family, int)
        Families, and the seeds of their members; see `members_in_turn`.
    folder : str or Path
        Where to; it is made.
    batch_size : int, default=1
        Inputs of a run.
    n_jobs : int, optional
        Processes that write side by side, as joblib takes it.

    Yields
    ------
    Path
        Every file in order, once it is written.

    Raises
    ------
    MissingDependencyError, OutputError
        As for `save_onnx`.
    """
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    paths = [target / onnx_name(family, seed) for family, seed in members]
    there = [path.is_file() for path in paths]
    calls = (
        delayed(save_onnx)(family, seed, path, batch_size)
        for (family, seed), path, is_there in zip(members, paths, there, strict=True)
        if not is_there
    )
    made = side_by_side(calls, n_jobs)
    for path, is_there in zip(paths, there, strict=True):
        yield path if is_there else next(made)


def members_in_turn(members: Sequence[Family], count: int, first_seed: int = 1) -> list[Member]:
    """Return the first members of all families, then the second of all, and so on.

    So what was written or measured before an interruption is of all families.

    Parameters
    ----------
    members : sequence of Family
        Of which.
    count : int
        How many of each.
    first_seed : int, default=1
        Seed of the first member of every family; 0 is the published network.

    Raises
    ------
    InvalidValueError
        If the count is not positive.
    """
    if count < 1:
        raise InvalidValueError(f"The 'count' of networks must be an int >= 1. Got {count}.")
    return [(family, seed) for seed in range(first_seed, first_seed + count) for family in members]


def onnx_name(family: Family, seed: int) -> str:
    """Return the name of a member's file."""
    return f"{family.name}-{seed:05}.onnx"


def generated_files(folder: str | Path) -> list[Path]:
    """Return the files in a folder that are named as members of families are."""
    pattern = re.compile(rf"(?:{'|'.join(map(re.escape, families()))})-\d{{5,}}\.onnx")
    return sorted(path for path in Path(folder).glob("*.onnx") if pattern.fullmatch(path.name))
