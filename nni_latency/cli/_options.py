"""Options that several commands share, and what they stand for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

import nni_latency.spaces as spaces
from nni_latency.cli._option import JSON_OBJECT
from nni_latency.cli._space_options import SpaceOptions
from nni_latency.errors import MismatchError
from nni_latency.estimators import Estimator, FallbackEstimator, LayerEnsemble, TableEstimator
from nni_latency.platforms import check_same_platform, current_platform
from nni_latency.tables import OPERATORS, LookupTable

Command = TypeVar("Command", bound=Callable[..., Any])

#: Options that make a space; those not given are left to the space, or to the table.
SPACE_OPTIONS = ("preset", "input_size", "num_classes", "width", "depth")


def space_options(command: Command) -> Command:
    """Add the options that choose a space."""
    for option in reversed(
        (
            click.option(
                "--space",
                default="fbnet",
                show_default=True,
                help="Model space: a registered name, package.module:Class, or path/to/file.py:Class.",
            ),
            click.option("--space-args", type=JSON_OBJECT, help="Arguments of the space as JSON, by their own names."),
            click.option("--preset", help="Strides of the stages: imagenet or cifar.  [default: by the input size]"),
            click.option("--input-size", type=int, help="Side of the input picture [pixel].  [default: the preset's]"),
            click.option("--num-classes", type=int, help="Classes.  [default: the preset's]"),
            click.option("--width", type=float, help="Factor on all channels.  [default: 1]"),
            click.option("--depth", type=float, help="Factor on the blocks of every stage.  [default: 1]"),
        )
    ):
        command = option(command)
    return command


def missing_option(command: Command) -> Command:
    """Add the option that says what is done about what a table lacks."""
    return click.option(
        "--missing",
        type=click.Choice(["error", "nearest"]),
        default="error",
        show_default=True,
        help="What to do about candidates that a table lacks.",
    )(command)


def estimator_option(command: Command) -> Command:
    """Add the options that choose an estimator."""
    for option in reversed(
        (
            click.option(
                "--latency-estimator",
                required=True,
                metavar="FILE|NAME[:ARGUMENT]",
                help="A saved table, or a registered estimator.",
            ),
            missing_option,
        )
    ):
        command = option(command)
    return command


def given_arguments(options: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of the space that were given, by their own names."""
    given = (options.get(name) for name in ("space_args", *SPACE_OPTIONS))
    return SpaceOptions(options["space"], *given).arguments


def make_space(name: str, arguments: dict[str, Any]) -> Any:
    """Make a space by its registered name, or by its class."""
    return spaces.make_space(name, arguments)


def arguments_for(
    estimator: Estimator, space: str, options: dict[str, Any], *, ignore: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Return the arguments of a space: those of the estimator's table, and options given must agree with them.

    Raises
    ------
    MismatchError
        If the table belongs to another space than the options ask for.
    """
    given = given_arguments(options)
    table = _table_of(estimator)
    if table is None or table.space.name == OPERATORS:
        return given
    reference = table.space
    if reference.name != space:
        raise MismatchError(f"The table belongs to the space {reference.name!r}, asked is {space!r}.")
    wrong = [
        f"{name}={reference.arguments.get(name)} against {name}={value}"
        for name, value in given.items()
        if name not in ignore and reference.arguments.get(name) != value
    ]
    if wrong:
        raise MismatchError(f"The table belongs to another space than asked ({'; '.join(wrong)}): {reference}.")
    return {**reference.arguments, **{name: given[name] for name in ignore if name in given}}


def check_batch_size(estimator: Estimator, batch_size: int | None) -> int:
    """Return the batch size to use; one that is asked for must be that of the table."""
    table = _table_of(estimator)
    if table is None:
        return batch_size or 1
    measured = table.batch_size
    if batch_size not in (None, measured):
        raise MismatchError(f"The table was measured with batch size {measured}, asked is batch size {batch_size}.")
    return measured


def _table_of(estimator: Estimator) -> LookupTable | None:
    """Return the table that an estimator answers from first, if there is one."""
    if isinstance(estimator, TableEstimator):
        return estimator.table
    return estimator.base_table if isinstance(estimator, (FallbackEstimator, LayerEnsemble)) else None


def check_device(estimator: Estimator, device: str | None) -> None:
    """If a device is asked for, the estimator's platform must be that of this machine's device."""
    if device is None:
        return
    platform = estimator.platform
    here = current_platform(device, runtime=platform.runtime, precision=platform.precision, threads=platform.threads)
    check_same_platform(platform, here, f"Using an estimator of {platform.id} for {here.id}")
