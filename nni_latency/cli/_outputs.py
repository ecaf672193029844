# SPDX-License-Identifier: Apache-2.0
"""The one rule for every file that a command writes: nothing that is there is destroyed unasked."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from nni_latency.cli._help import format_options, help_all_option
from nni_latency.errors import InvalidValueError, OutputError
from nni_latency.files import check_writable

_META, _OVERWRITE = "nni_latency.outputs", "nni_latency.overwrite"


class OutputFile(click.Path):
    """The type of an option or argument that names a file to be written."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)


class OutputDatabase(OutputFile):
    """The type of an option that names a database to be written: a file, or the URL of a server."""

    def __init__(self) -> None:
        click.Path.__init__(self, path_type=str)


class OutputFolder(OutputFile):
    """The type of an option that names a folder to be filled with results.

    Parameters
    ----------
    files : sequence of str
        Names of the results.
    unfinished : str
        Name of the file that is there as long as the command has not ended: the command goes on from it.
    """

    def __init__(self, files: Sequence[str], unfinished: str) -> None:
        super().__init__()
        self.files = tuple(files)
        self.unfinished = unfinished


class Outputs:
    """The files that one call of a command writes.

    Parameters
    ----------
    inputs : iterable of Path
        Files that the command was given to read.
    overwrite : bool
        Whether files that exist may be replaced.
    """

    def __init__(self, inputs: Iterable[Path], *, overwrite: bool) -> None:
        self.overwrite = overwrite
        self._inputs = tuple(inputs)
        self._claimed: list[Path] = []

    def claim(self, path: Path, *, overwrite: bool = False) -> Path:
        """Return a file that the command is going to write; with `overwrite`, one that exists may be replaced.

        Raises
        ------
        InvalidValueError
            If it is an input or another output of the command, or exists and may not be replaced.
        OutputError
            If it cannot be written.
        """
        if any(_is_same(path, other) for other in self._inputs):
            raise InvalidValueError(
                f"The output {str(path)!r} is an input of this command, too. Name another file for the output."
            )
        self._check_unclaimed(path)
        check_writable(path)
        if path.exists() and not (self.overwrite or overwrite):
            raise InvalidValueError(f"{str(path)!r} exists. Choose another file, or replace it with --overwrite.")
        self._claimed.append(path)
        return path

    def claim_folder(self, folder: Path, kind: OutputFolder) -> None:
        """Check a folder that the command is going to fill: it is new, empty, unfinished, or may be overwritten.

        Raises
        ------
        InvalidValueError
            If it holds anything and may not be overwritten, is another output, or one of the files is an input.
        OutputError
            If it is no folder, or a file in it cannot be written.
        """
        self._check_unclaimed(folder)
        self._claimed.append(folder)
        is_unfinished = (folder / kind.unfinished).is_file()
        if folder.is_dir() and not (self.overwrite or is_unfinished) and next(folder.iterdir(), None) is not None:
            raise InvalidValueError(
                f"The folder {str(folder)!r} is not empty. Choose another folder, or replace its results with "
                "--overwrite."
            )
        for name in (*kind.files, kind.unfinished):
            self.claim(folder / name, overwrite=is_unfinished)

    def _check_unclaimed(self, path: Path) -> None:
        if any(_is_same(path, other) for other in self._claimed):
            raise InvalidValueError(f"Two outputs cannot both be {str(path)!r}. Name another file for one of them.")

    def empty(self, folder: Path, kind: OutputFolder) -> None:
        """Remove older results from a folder if they may be overwritten, so that no two calls mix.

        Raises
        ------
        OutputError
            If one cannot be removed.
        """
        if not self.overwrite:
            return
        for name in (*kind.files, kind.unfinished):
            try:
                (folder / name).unlink(missing_ok=True)
            except OSError as error:
                raise OutputError(f"Cannot replace {str(folder / name)!r}: {error.strerror or error}.") from error


class WritingCommand(click.Command):
    """A command that obeys the rule for its outputs; it has ``--overwrite`` if one of its parameters is an output."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._help_all = help_all_option()
        if any(isinstance(parameter.type, OutputFile) for parameter in self.params):
            self.params.append(
                click.Option(
                    ["--overwrite"], is_flag=True, help="Replace existing files.", expose_value=False, callback=_note
                )
            )

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the parameters, those of help at the end."""
        return [*super().get_params(ctx), self._help_all]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options in the length that was asked for."""
        format_options(self, ctx, formatter)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments, and note whether files may be replaced."""
        rest = super().parse_args(ctx, args)
        ctx.meta[_META] = Outputs(_inputs(ctx), overwrite=ctx.meta.get(_OVERWRITE, False))
        return rest

    def invoke(self, ctx: click.Context) -> Any:
        """Check all outputs that were named, then run."""
        for parameter in self.params:
            if isinstance(parameter.type, OutputFile):
                for value in _flat(ctx.params.get(parameter.name or "")):
                    _claim(ctx.meta[_META], parameter.type, value)
        return super().invoke(ctx)


def _note(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    ctx.meta[_OVERWRITE] = value


def _claim(written: Outputs, kind: OutputFile, value: str | Path) -> None:
    if isinstance(kind, OutputFolder):
        written.claim_folder(Path(value), kind)
    elif not (isinstance(kind, OutputDatabase) and "://" in str(value)):
        written.claim(Path(value))


def outputs() -> Outputs:
    """Return the outputs of the command that runs."""
    found: Outputs = click.get_current_context().meta[_META]
    return found


def _inputs(ctx: click.Context | None) -> Iterator[Path]:
    """Find the files that the parameters of a command, and of its groups, name and that are no outputs."""
    while ctx is not None:
        written = {item.name for item in ctx.command.params if isinstance(item.type, OutputFile)}
        for name, given in ctx.params.items():
            if name not in written:
                yield from (path for value in _flat(given) for path in _files(value))
        ctx = ctx.parent


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from _flat(item)
    elif isinstance(value, (str, Path)):
        yield value


def _files(value: str | Path) -> Iterator[Path]:
    """Return the files that a value may name: itself, or what follows or precedes a colon, as in ``acts:FILE``."""
    text = os.fspath(value)
    for part in {text, text.partition(":")[2], text.rpartition(":")[0]}:
        try:
            if part and Path(part).exists():
                yield Path(part)
        except (OSError, ValueError):
            continue


def _is_same(first: Path, second: Path) -> bool:
    if first.exists() and second.exists():
        return first.samefile(second)
    return first.resolve() == second.resolve()
