"""Options that several commands share, and what they stand for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

import nni_latency.spaces as spaces
from nni_latency.cli._spaces import JsonObject, own_arguments
from nni_latency.errors import InvalidValueError, MismatchError
from nni_latency.estimators import Estimator, FallbackEstimator, LayerEnsemble, TableEstimator
from nni_latency.measurement import Protocol
from nni_latency.measurement.runtimes import Runtime
from nni_latency.platforms import check_same_platform, current_platform
from nni_latency.plugins import load_registry
from nni_latency.tables import LookupTable, MeasurePlan
from nni_latency.units import parse_duration

Command = TypeVar("Command", bound=Callable[..., Any])

#: Options that make a space; those not given are left to the space, or to the table.
SPACE_OPTIONS = ("preset", "input_size", "num_classes", "width", "depth")


class Duration(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.4
    """A duration such as ``90``, ``90s`` or ``1.5min``, in seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Read it, or fail with a sentence."""
        try:
            return parse_duration(str(value))
        except InvalidValueError as error:
            self.fail(str(error), param, ctx)


class BatchSizes(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.4
    """Batch sizes separated by commas, such as ``1,8,32``."""

    name = "n[,n...]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """Read them, or fail with a sentence."""
        if isinstance(value, tuple):
            return value
        parts = [part.strip() for part in str(value).split(",")]
        if not all(part.isdecimal() and int(part) >= 1 for part in parts):
            self.fail(f"Batch sizes must be whole numbers >= 1, separated by commas. Got {value!r}.", param, ctx)
        return tuple(dict.fromkeys(int(part) for part in parts))


def device_option(command: Command) -> Command:
    """Add the option that says where to measure."""
    return click.option("--device", default="cpu", show_default=True, help="cpu, cuda or cuda:N.")(command)


def platform_options(things: str, one: str) -> Callable[[Command], Command]:
    """Add the options that say where and how something is measured: device, runtime, precision and threads.

    Parameters
    ----------
    things : str
        What a runtime executes, in the plural.
    one : str
        What runs on so many threads.
    """
    runtime = click.option("--runtime", default="torch", show_default=True, help=f"What executes the {things}.")
    precision = click.option(
        "--precision", type=click.Choice(["fp32", "bf16", "fp16"]), default="fp32", show_default=True
    )
    threads = click.option(
        "--threads", type=click.IntRange(1), default=1, show_default=True, help=f"Threads per {one}."
    )

    def add(command: Command) -> Command:
        return device_option(runtime(precision(threads(command))))

    return add


def ending_options(
    budget: str,
    budget_help: str = "Most time spent measuring, such as 30s or 5min.",
    half_width: float = 0.01,
    half_width_help: str = "End earlier when half the width of every interval is this share of its value.",
) -> Callable[[Command], Command]:
    """Add the options that say when measuring ends: budget, half-width and rounds.

    Parameters
    ----------
    budget : str
        Budget unless another is given.
    budget_help, half_width_help : str
        What the two mean.
    half_width : float
        Half-width unless another is given.
    """
    options = (
        click.option("--budget", type=Duration(), default=budget, show_default=True, help=budget_help),
        click.option(
            "--half-width",
            type=click.FloatRange(0, 1, max_open=True),
            default=half_width,
            show_default=True,
            help=half_width_help,
        ),
        click.option(
            "--rounds", type=click.IntRange(1), default=Protocol().rounds, show_default=True, help="Most rounds."
        ),
        click.option("--fresh", is_flag=True, help="Measure again what the database has."),
        click.option(
            "--database",
            metavar="URL|FILE",
            envvar="NNI_LATENCY_DATABASE",
            help="Where measurements are kept.  [default: the user's own database]",
        ),
    )

    def add(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return add


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
            click.option("--space-args", type=JsonObject(), help="Arguments of the space as JSON, by their own names."),
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
    given = {name: options[name] for name in SPACE_OPTIONS if options.get(name) is not None}
    return own_arguments(options["space"], given, options.get("space_args") or {})


def make_space(name: str, arguments: dict[str, Any]) -> Any:
    """Make a space by its registered name, or by its class."""
    return spaces.make_space(name, arguments)


def make_runtime(name: str, device: str, threads: int, precision: str) -> Runtime:
    """Make a registered runtime."""
    made: Runtime = load_registry().find("runtime", name).make(device, threads=threads, precision=precision)
    return made


def plan_for(space: Any, name: str, batch_size: int) -> MeasurePlan:
    """Return the plan of a space for a batch size; a space without one is an error."""
    if not hasattr(space, "measure_plan"):
        raise InvalidValueError(
            f"The space {name!r} has no measure plan, that is layers with a few candidates each, which this needs."
        )
    plan: MeasurePlan = space.measure_plan(batch_size)
    return plan


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
    if table is None:
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
    if batch_size is not None:
        table.check_batch_size(batch_size)
    return table.batch_size


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
