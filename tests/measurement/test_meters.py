# SPDX-License-Identifier: Apache-2.0
"""Meters: counters in a folder of powercap, recorded readings of a GPU, external meters, and what is assumed."""

from __future__ import annotations

import dataclasses
import http.server
import itertools
import json
import os
import socket
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import cloudpickle
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nni_latency.errors import (
    FileFormatError,
    InvalidValueError,
    MeasurementError,
    MissingDependencyError,
    PluginError,
    UnknownNameError,
)
from nni_latency.loading import load_meter
from nni_latency.measurement import CoarseMeterError, LocalBench, LocalBenches, Protocol, Visit, WindowLostError
from nni_latency.measurement.meters import (
    LOAD_PATTERN,
    ConstantMeter,
    CounterMeter,
    CsvMeter,
    HttpMeter,
    NvmlMeter,
    PowerLog,
    RaplMeter,
    SampledMeter,
    ZeusMeter,
    clock_offset,
    update_period,
)
from nni_latency.plugins import Registration
from nni_latency.tables import candidate_subjects
from nni_latency.testing import FakeMeter, FakeRuntime, check_meter, fake_plan

LARGEST = 262_143_328_850


class Powercap:
    """The folder of a kernel, whose counters grow as time goes on."""

    def __init__(self, root: Path, domains: dict[str, tuple[str, float]], start: int = 5_000_000) -> None:
        self.folder, self.now = root / "sys/class/powercap", 0.0
        self.domains, self.counts = domains, dict.fromkeys(domains, start)
        self.step = 1e-3
        for zone, (name, _) in domains.items():
            (self.folder / zone).mkdir(parents=True)
            (self.folder / zone / "name").write_text(f"{name}\n")
            (self.folder / zone / "max_energy_range_uj").write_text(f"{LARGEST}\n")
        self.sleep(0.0)

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        """Let time pass, a tenth of a millisecond at least; counters are updated every millisecond."""
        before, self.now = self.now, self.now + max(seconds, 1e-4)
        ticks = int(self.now / self.step + 1e-9) - int(before / self.step + 1e-9)
        if before and not ticks:
            return
        for zone, (_, watts) in self.domains.items():
            self.counts[zone] = (self.counts[zone] + int(watts * self.step * 1e6) * ticks) % (LARGEST + 1)
            (self.folder / zone / "energy_uj").write_text(f"{self.counts[zone]}\n")


DOMAINS = {
    "intel-rapl:0": ("package-0", 20.0),
    "intel-rapl:0:0": ("core", 12.0),
    "intel-rapl:0:1": ("dram", 3.0),
    "intel-rapl:1": ("package-1", 10.0),
    "intel-rapl:2": ("psys", 60.0),
    "intel-rapl-mmio:0": ("package-0", 20.0),
}


@pytest.fixture
def powercap(tmp_path):
    return Powercap(tmp_path, DOMAINS)


def _rapl(powercap, domain="all"):
    root = powercap.folder.parents[2]
    return RaplMeter(domain, root=root, clock=powercap.clock, sleep=powercap.sleep)


@pytest.mark.parametrize(("domain", "watts"), [("all", 33.0), ("package", 30.0), ("cores", 12.0), ("dram", 3.0)])
def test_rapl_adds_up_the_zones_of_a_domain_once(powercap, domain, watts):
    meter = _rapl(powercap, domain)
    with meter.session():
        meter.start()
        powercap.sleep(2.0)
        assert meter.stop() == pytest.approx(2 * watts, rel=1e-3)
        assert meter.idle() == pytest.approx(watts, rel=2e-3)


def test_rapl_finds_the_period_of_its_counter(powercap):
    meter = _rapl(powercap)
    with meter.session():
        assert meter.period == pytest.approx(1e-3, rel=0.11)
    powercap.step = 0.02
    with meter.session():
        assert meter.period == pytest.approx(0.02, rel=0.02)
        assert meter.runs(0.01) == 100


def test_rapl_goes_on_where_a_counter_begins_anew(tmp_path):
    powercap = Powercap(tmp_path, {"intel-rapl:0": ("package-0", 50.0)}, start=LARGEST - 20_000_000)
    meter = _rapl(powercap)
    with meter.session():
        meter.start()
        powercap.sleep(1.0)
        assert powercap.counts["intel-rapl:0"] < 50_000_000
        assert meter.stop() == pytest.approx(50.0, rel=2e-3)


def test_rapl_that_may_not_be_read_says_what_grants_it(powercap, monkeypatch):
    read = Path.read_text

    def forbidden(path, *arguments, **options):
        if path.name == "energy_uj":
            raise PermissionError(13, "Permission denied", str(path))
        return read(path, *arguments, **options)

    monkeypatch.setattr(Path, "read_text", forbidden)
    with pytest.raises(MeasurementError, match=r"sudo chmod a\+r \S*/sys/class/powercap/intel-rapl:\*/energy_uj$"):
        _rapl(powercap).zones()


def test_rapl_without_counters_names_the_way_out(tmp_path):
    with pytest.raises(
        MeasurementError, match=r"^There is no energy counter in /\S+\. .*assume a power: constant:WATTS$"
    ):
        RaplMeter(root=tmp_path).zones()


def test_rapl_without_the_domain_says_what_there_is(tmp_path):
    powercap = Powercap(tmp_path, {"intel-rapl:0": ("package-0", 20.0)})
    with pytest.raises(MeasurementError, match=r"no energy counter of 'dram' in .*, only of package-0\."):
        _rapl(powercap, "dram").zones()


def test_rapl_that_goes_away_is_said(powercap):
    meter = _rapl(powercap)
    with meter.session():
        meter.start()
        (powercap.folder / "intel-rapl:0" / "energy_uj").unlink()
        with pytest.raises(MeasurementError, match=r"energy_uj cannot be read .*does not answer"):
            meter.stop()


@pytest.mark.slow
def test_rapl_that_stands_still_is_said(powercap):
    powercap.domains = {zone: (name, 0.0) for zone, (name, _) in DOMAINS.items()}
    powercap.step = 1.0
    with pytest.raises(MeasurementError, match=r"did not count in 3 s"), _rapl(powercap).session():
        pass


def test_rapl_that_stalls_in_a_window_is_said(powercap):
    meter = _rapl(powercap)
    with meter.session():
        powercap.domains = {zone: (name, 0.0) for zone, (name, _) in DOMAINS.items()}
        meter.start()
        powercap.sleep(1.0)
        with pytest.raises(MeasurementError, match=r"has not counted for 1 s.*it has stalled"):
            meter.stop()


@pytest.mark.parametrize(("source", "device", "message"), [
    ("rapl", "cuda:0", r"'rapl' reads processors, not 'cuda:0'\. Use the meter 'nvml'"),
    ("nvml", "cpu", r"'nvml' reads NVIDIA GPUs, not 'cpu'"),
    ("nvml:volts", "cuda:0", r"takes 'energy' or 'power'.*'volts'"),
    ("constant:much", "cpu", r"positive power in watts, as in constant:15\. Got 'much'"),
    ("constant:-1", "cpu", r"Got -1"),
    ("constant", "cpu", r"as in constant:15\. Got ''"),
    ("csv:absent.csv", "cpu", r"as in csv:power\.csv\. There is no file 'absent\.csv'"),
    ("csv", "cpu", r"as in csv:power\.csv\. There is no file ''"),
    ("http:plug.local", "cpu", r"takes an address"),
])  # fmt: skip
def test_meter_that_can_not_be_made_is_named(source, device, message):
    with pytest.raises(InvalidValueError, match=message):
        load_meter(source, device)


def test_load_meter_knows_names_and_defaults():
    assert load_meter("", "cpu").description == "rapl"
    assert load_meter("", "cuda:1").device == "cuda:1"
    assert load_meter("http://plug/status#a.b").description == "http://plug/status#a.b"
    meter = ConstantMeter(3)
    assert load_meter(meter) is meter
    with pytest.raises(UnknownNameError, match=r"Unknown meter 'thermometer'"):
        load_meter("thermometer")
    with pytest.raises(UnknownNameError, match=r"Unknown domain of RAPL 'gpu'\. Available: all, "):
        load_meter("rapl:gpu")


def test_load_meter_refuses_what_is_no_meter(monkeypatch):
    registration = Registration("five", lambda device: 5, "odd", "meter")
    monkeypatch.setattr(
        "nni_latency.loading._runtimes.load_registry", lambda: SimpleNamespace(find=lambda kind, name: registration)
    )
    with pytest.raises(PluginError, match=r"'odd' must make a Meter for 'five'"):
        load_meter("five")
    with pytest.raises(InvalidValueError, match=r"'five' takes no argument"):
        load_meter("five:5")


# Recorded readings -----------------------------------------------------------------------------------------------


def _trace(seconds=10.0, period=0.1, every=0.01, level=150.0, seed=0):
    """Return readings of a GPU whose driver updates the power every tenth of a second."""
    random = np.random.default_rng(seed)
    updates = level + random.normal(0, 2, int(seconds / period) + 2).round(3)
    times = np.arange(0.0, seconds, every)
    return [(float(time), float(updates[int(time / period + 1e-9)])) for time in times]


def test_power_log_finds_the_true_period_of_updates():
    assert PowerLog.of(_trace()).period == pytest.approx(0.1, abs=0.011)
    assert PowerLog.of(_trace(period=0.02, every=0.005)).period == pytest.approx(0.02, abs=0.006)
    assert PowerLog.of([(0.0, 5.0), (1.0, 5.0)]).period is None


def test_power_log_integrates_between_readings():
    log = PowerLog.of(_trace())
    log.check(2.0, 8.0, 0.1, "The meter")
    assert log.energy(2.0, 8.0) == pytest.approx(6 * 150, rel=0.01)


@given(st.floats(0.1, 4.0), st.floats(0.1, 4.0), st.lists(st.floats(1, 500), min_size=3, max_size=30))
def test_energy_of_two_windows_adds_up(first, second, watts):
    log = PowerLog.of(enumerate(watts))
    middle = 0.5 + first
    whole = log.energy(0.5, middle + second)
    assert log.energy(0.5, middle) + log.energy(middle, middle + second) == pytest.approx(whole)


def test_power_log_refuses_a_gap():
    readings = [pair for pair in _trace() if not 4.0 < pair[0] < 5.5]
    with pytest.raises(MeasurementError, match=r"The meter gave no reading for 1\.5\d? s.*every 100 ms"):
        PowerLog.of(readings).check(2.0, 8.0, 0.1, "The meter")
    PowerLog.of(readings).check(6.0, 8.0, 0.1, "The meter")


def test_power_log_refuses_a_stall():
    readings = [(time, watts if time < 3.0 else 150.0) for time, watts in _trace()]
    with pytest.raises(MeasurementError, match=r"The meter has shown the same power for 5\.0\d? s.*it has stalled"):
        PowerLog.of(readings).check(2.0, 8.0, 0.1, "The meter")


def test_power_log_that_ends_early_is_refused():
    with pytest.raises(MeasurementError, match=r"no reading for 4\.0\d? s"):
        PowerLog.of(_trace(seconds=4.0)).check(2.0, 8.0, 0.1, "The meter")


@given(st.floats(0.01, 1.0), st.integers(3, 20))
def test_update_period_is_that_of_the_changes(period, steps):
    times = [number * period / 4 for number in range(4 * steps)]
    assert update_period(times, [number // 4 for number in range(4 * steps)]) == pytest.approx(period, rel=1e-3)


class Driver:
    """pynvml for one GPU whose readings follow a trace, twenty times as fast as it was recorded."""

    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0

    class NVMLError(Exception):
        """The root of the errors of pynvml."""

    def __init__(
        self, *, watts=lambda seconds: 150.0, counter=True, clock=lambda seconds: 1410, others=(), period=5e-3
    ):
        self.begin, self.watts, self.counter = time.perf_counter(), watts, counter
        self.clock_of, self.others, self.period = clock, list(others), period
        self.dead, self.offset, self.stalled = False, 0.0, None

    @property
    def now(self):
        return (time.perf_counter() - self.begin) // self.period * self.period

    def _answer(self, value):
        if self.dead:
            raise self.NVMLError("GPU is lost")
        return value

    def nvmlInit(self):  # noqa: N802
        self._answer(None)

    def nvmlShutdown(self):  # noqa: N802
        pass

    def nvmlDeviceGetHandleByIndex(self, index):  # noqa: N802
        return index

    def nvmlDeviceGetTotalEnergyConsumption(self, handle):  # noqa: N802
        if not self.counter:
            raise self.NVMLError("Not Supported")
        if self.stalled is None and self.offset >= 0:
            return self._answer(int(1e3 * (self.offset + 150.0 * self.now)))
        return self._answer(int(1e3 * (self.stalled or 0.0)))

    def nvmlDeviceGetPowerUsage(self, handle):  # noqa: N802
        return self._answer(int(1e3 * (self.watts(self.now) + 1e-3 * (self.now / self.period % 7))))

    def nvmlDeviceGetClockInfo(self, handle, kind):  # noqa: N802
        return self._answer(self.clock_of(self.now))

    def nvmlDeviceGetTemperature(self, handle, kind):  # noqa: N802
        return self._answer(61)

    def nvmlDeviceGetEnforcedPowerLimit(self, handle):  # noqa: N802
        return self._answer(165_000)

    def nvmlDeviceGetComputeRunningProcesses(self, handle):  # noqa: N802
        return [SimpleNamespace(pid=each) for each in self.others]


@pytest.fixture
def gpu(monkeypatch, tmp_path):
    """Return a function that makes a meter of a GPU."""
    monkeypatch.setattr("torch.cuda._get_nvml_device_index", lambda index: index)
    monkeypatch.setattr(SampledMeter, "watch", 0.2)
    monkeypatch.setattr(NvmlMeter, "power_settling", 0.05)
    monkeypatch.setattr(NvmlMeter, "look_every", 0.005)
    monkeypatch.setattr(SampledMeter, "idle_time", 0.1)
    monkeypatch.setattr(CounterMeter, "idle_time", 0.1)
    # Gaps have separate tests: on a busy machine a thread may not read for a while.
    monkeypatch.setattr(PowerLog, "least_gap", 10.0)
    return lambda way="", **traits: NvmlMeter("cuda:0", way, nvml=Driver(**traits), root=tmp_path)


def _check_window(meter, watts, rel):
    """Measure a window: its energy is that of a power, however long this process waits for others at its ends."""
    earliest = time.perf_counter()
    meter.start()
    begin = time.perf_counter()
    time.sleep(0.3)
    end = time.perf_counter()
    energy = meter.stop()
    latest = time.perf_counter()
    assert (1 - rel) * watts * (end - begin) <= energy <= (1 + rel) * watts * (latest - earliest)


def test_nvml_reads_the_counter_where_there_is_one(gpu):
    meter = gpu()
    with meter.session():
        # On a busy machine a look at the counter may come late: neighbouring updates are seen as one, or soon after
        # each other.
        assert 1e-3 < meter.period < 5e-2
        _check_window(meter, 150.0, rel=0.15)
        seen = meter.observations()
    assert (seen["gpu_power_limit"], seen["gpu_temperature"]) == ([165.0, 165.0], [61.0, 61.0])
    assert set(seen["gpu_clock"]) == {1.41e9}


def test_nvml_samples_the_power_where_there_is_no_counter(gpu):
    meter = gpu(counter=False)
    with meter.session():
        _check_window(meter, 150.0, rel=0.01)
        assert meter.idle() == pytest.approx(150.0, rel=0.01)


def test_nvml_takes_the_power_once_it_is_settled(gpu):
    meter = gpu("power", watts=lambda seconds: 20.0)
    with meter.session():
        driver = meter._given
        begin = driver.now
        # The average that the driver shows has not come up when the window begins.
        driver.watts = lambda seconds: 20.0 if seconds < begin + 0.04 else 120.0
        _check_window(meter, 120.0, rel=0.02)


def test_nvml_that_can_not_do_as_asked_says_what_the_driver_said(gpu):
    with (
        pytest.raises(MeasurementError, match=r"has nothing that nvml:energy can read \(energy: Not Supported\)"),
        gpu("energy", counter=False).session(),
    ):
        pass


@pytest.mark.parametrize(("trait", "message"), [
    ({"dead": True}, r"The driver of the GPU stopped answering \(GPU is lost\)"),
    ({"offset": -1.0}, r"fell from [\d.]+ to 0 J while it was read"),
])  # fmt: skip
def test_nvml_counter_that_fails_in_a_window_is_said(gpu, trait, message):
    meter = gpu()
    with meter.session():
        meter.start()
        for name, value in trait.items():
            setattr(meter._given, name, value)
        with pytest.raises(MeasurementError, match=message):
            meter.stop()
        meter._given.dead = False


def test_nvml_counter_that_stalls_is_said(gpu):
    meter = gpu()
    with meter.session():
        meter._given.stalled = 5.0
        meter.period = meter._inner.period = 5e-3
        meter.start()
        time.sleep(0.15)
        with pytest.raises(MeasurementError, match=r"it has stalled"):
            meter.stop()


def test_nvml_power_that_dies_in_a_window_is_said(gpu):
    meter = gpu("power")
    with meter.session():
        meter.start()
        meter._given.dead = True
        with pytest.raises(MeasurementError, match=r"stopped answering while it was measured: .*GPU is lost"):
            meter.stop()


def test_nvml_with_another_process_on_the_gpu_is_refused(gpu, tmp_path):
    for process in (4711, 4712):
        (tmp_path / "proc" / str(process)).mkdir(parents=True)
    # The one that started this process, and one that a container does not see, are no others.
    meter = gpu(others=[4711, 4712, os.getppid(), 999_999])
    message = r"Another process uses the GPU cuda:0 \(process 4711, 4712\)"
    with pytest.raises(MeasurementError, match=message), meter.session():
        pass


def test_nvml_without_a_driver_says_so(gpu):
    meter = gpu()
    meter._given.dead = True
    with pytest.raises(MeasurementError, match=r"No NVIDIA driver answers \(GPU is lost\)"), meter.session():
        pass


def test_clocks_that_changed_in_the_middle_mark_the_record(gpu):
    clocks = itertools.cycle([1410, 1410, 1410, 990])
    meter = gpu(clock=lambda seconds: next(clocks))
    with meter.session():
        _check_window(meter, 150.0, rel=0.15)
        visit = Visit(1.0, [], {"latency": [1.0], **meter.observations()})
    assert visit.marks == ("The GPU went from 1.41 to 0.99 GHz while it was measured.",)
    assert Visit(1.0, [], {"gpu_power_limit": [165.0, 150.0]}).marks == (
        "The GPU's power limit went from 165 to 150 W while it was measured.",
    )


def test_nvml_travels_to_a_worker_after_a_session(gpu):
    meter = gpu("power")
    with meter.session():
        pass
    meter._given = None
    assert cloudpickle.loads(cloudpickle.dumps(meter)).way == "power"


# External meters ---------------------------------------------------------------------------------------------------


def test_clock_offset_is_found_from_the_load():
    begin, offset, step = 1000.0, -7.36, 0.5
    times = np.arange(begin + offset - 1, begin + offset + 12, 0.1)
    place = ((times - begin - offset) // step).astype(int)
    load = np.array([LOAD_PATTERN[index] if 0 <= index < len(LOAD_PATTERN) else 0 for index in place])
    watts = 30 + 8 * load + np.random.default_rng(0).normal(0, 1, len(times))
    found, clear = clock_offset(times, watts, begin)
    assert found == pytest.approx(offset, abs=0.1)
    assert clear > 0.8


def test_clock_offset_of_another_machine_is_not_clear():
    times = np.arange(990.0, 1012.0, 0.1)
    assert clock_offset(times, np.random.default_rng(1).normal(30, 2, len(times)), 1000.0)[1] < 0.6


class _Logger(threading.Thread):
    """A program of a power meter that writes lines by a clock that is three seconds ahead."""

    def __init__(self, path, ahead=3.0, every=0.02):
        super().__init__(daemon=True)
        self.path, self.ahead, self.every, self.over = path, ahead, every, threading.Event()
        self.watts = 40.0
        path.write_text("timestamp,volts,power_mw\n")

    def run(self):
        while not self.over.wait(self.every):
            with self.path.open("a") as file:
                file.write(f"{time.time() + self.ahead:.4f},230,{1e3 * self.watts + time.time() % 1:.3f}\n")


@pytest.fixture
def logger(tmp_path, monkeypatch):
    monkeypatch.setattr(CsvMeter, "settling", 0.05)
    monkeypatch.setattr(CsvMeter, "watch", 0.3)
    monkeypatch.setattr(CsvMeter, "idle_time", 0.1)
    monkeypatch.setattr(PowerLog, "least_gap", 10.0)
    thread = _Logger(tmp_path / "plug.csv")
    thread.start()
    yield thread
    thread.over.set()
    thread.join()


@pytest.mark.slow
def test_csv_reads_what_is_added_by_this_machines_clock(logger, monkeypatch):
    meter = CsvMeter(logger.path, offset=3.0, every=0.01)
    with meter.session():
        _check_window(meter, 40.0, rel=0.01)
        monkeypatch.setattr(meter, "patience", 0.5)
        logger.over.set()
        logger.join()
        meter.start()
        time.sleep(0.1)
        with pytest.raises(MeasurementError, match=r"plug\.csv stopped answering while it was measured: .*program"):
            meter.stop()


@pytest.mark.slow
def test_csv_aligns_its_clock_by_a_load(logger):
    def work(seconds):
        logger.watts = 60.0
        time.sleep(seconds)
        logger.watts = 40.0

    meter = CsvMeter(logger.path, every=0.02, work=work)
    with meter.session():
        assert meter.offset_ == pytest.approx(3.0, abs=0.1)

    def unasked(seconds):
        raise AssertionError("the clocks are aligned")

    meter._work = unasked
    with cloudpickle.loads(cloudpickle.dumps(meter)).session():
        assert meter.offset_ == pytest.approx(3.0, abs=0.1)


def test_csv_makes_the_load_again_where_others_hide_it(tmp_path, monkeypatch):
    (tmp_path / "plug.csv").write_text("time,watts\n")
    meter, found = CsvMeter(tmp_path / "plug.csv"), [(1.0, 0.2), (3.5, 0.9)]
    monkeypatch.setattr(meter, "_offset", lambda: found.pop(0))
    with meter.opened():
        assert meter.offset_ == 3.5
    meter = CsvMeter(tmp_path / "plug.csv")
    monkeypatch.setattr(meter, "_offset", lambda: (1.0, 0.2))
    with pytest.raises(MeasurementError, match=r"\(correlation 0\.20\): other processes were busy, or"), meter.opened():
        pass


def test_csv_of_a_line_that_is_no_reading_is_said(logger):
    meter = CsvMeter(logger.path, offset=3.0, every=0.01)
    with meter.session():
        logger.over.set()
        logger.join()
        with logger.path.open("a") as file:
            file.write("oops,1\n")
        with pytest.raises(MeasurementError, match=r"without a time and a power: 'oops,1'"):
            meter._await(time.perf_counter() + 1.0, "died")


def test_csv_reads_lines_that_are_written_in_pieces(tmp_path):
    path = tmp_path / "plug.csv"
    path.write_text("time,note,watts\n1,,7.5\n2,,8")
    meter = CsvMeter(path, offset=0.0)
    with meter.opened():
        for piece, found in ((b".5\n3,25 \xc2", [8.5]), (b"\xb0C,9.5\n", [9.5])):
            with path.open("ab") as file:
                file.write(piece)
            assert [watts for _, watts in meter.readings()] == found


def test_reading_that_fails_in_any_way_is_said():
    class Broken(SampledMeter):
        description = "broken"

        def readings(self):
            raise KeyError("watts")

    with pytest.raises(MeasurementError, match=r"^broken did not answer: KeyError: 'watts'$"), Broken().session():
        pass


def test_csv_needs_columns_of_time_and_power(tmp_path):
    path = tmp_path / "plug.csv"
    path.write_text("Time (s),Watts\n")
    meter = CsvMeter(path, offset=0.0)
    with meter.opened():
        with path.open("a") as file:
            file.write(f"{time.time()},7.5\n")
        assert [watts for _, watts in meter.readings()] == [7.5]
    path.write_text("a,b\n")
    with pytest.raises(FileFormatError, match=r"no columns of time and power.*'a,b'"), meter.opened():
        pass
    with pytest.raises(InvalidValueError, match=r"The offset of .* must be seconds\. Got 'soon'"):
        CsvMeter.of("cpu", f"{tmp_path / 'x.csv'},offset=soon")


@pytest.fixture
def plug():
    """Return a function that serves an answer, and its address."""
    servers = []

    def serve(answer):
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                text = json.dumps(answer() if callable(answer) else answer).encode()
                self.send_response(200)
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *arguments):
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}/status"

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


def test_http_reads_the_power_of_a_plug(plug, monkeypatch):
    monkeypatch.setattr(HttpMeter, "settling", 0.05)
    monkeypatch.setattr(HttpMeter, "watch", 0.2)
    monkeypatch.setattr(PowerLog, "least_gap", 10.0)
    meter = HttpMeter(plug(lambda: {"switch": {"apower": 25.0 + time.time() % 1e-3}}), every=0.01)
    with meter.session():
        _check_window(meter, 25.0, rel=0.01)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ({"volts": 230}, "the answer has no number under"),
        ({"power": -4}, r"the power is -4\.0"),
        ({"power": 10**400}, "int too large"),
        ("on", "no number"),
    ],
)
def test_http_without_a_power_is_said(plug, answer, reason):
    meter = HttpMeter(plug(answer))
    with pytest.raises(MeasurementError, match=rf"^http://127\S* did not answer: .*{reason}"), meter.session():
        pass


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (b"ICY 200 OK\r\n\r\n12.5", "ICY 200 OK"),
        (b"HTTP/1.0 200 OK\r\n\r\n" + b"[" * 60_000, "maximum recursion depth exceeded"),
    ],
)
def test_http_of_another_kind_is_said(sent, reason):
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer():
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(sent)

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        meter = HttpMeter(f"http://127.0.0.1:{server.getsockname()[1]}/status")
        with pytest.raises(MeasurementError, match=rf"did not answer: .*{reason}"), meter.session():
            pass
        thread.join(60)


@pytest.mark.parametrize("url", ["http://127.0.0.1:9/status", "http://127.0.0.1:9/status#power"])
def test_http_that_is_not_there_says_so_once(url):
    with (
        pytest.raises(MeasurementError, match=rf"^{url} did not answer: Connection refused$"),
        HttpMeter(url).session(),
    ):
        pass


@dataclasses.dataclass
class _Energy:
    cpu_energy_mj: float | None = None
    gpu_energy_mj: float | None = None
    total_energy_mj: float | None = None


@pytest.mark.parametrize(
    ("known", "watts"),
    [({"cpu_energy_mj": 2.0, "gpu_energy_mj": 5.0}, 7.0), ({"cpu_energy_mj": 2.0, "total_energy_mj": 9.0}, 9.0)],
)
def test_zeus_adds_up_a_chip(known, watts):
    now = itertools.count()
    chip = SimpleNamespace(
        get_total_energy_consumption=lambda: (
            lambda tick: _Energy(**{name: 1e3 * value * tick for name, value in known.items()})
        )(next(now))
    )
    moments = itertools.count()
    meter = ZeusMeter(chip, clock=lambda: float(next(moments)) / 10, sleep=lambda seconds: None)
    with meter.session():
        meter.start()
        assert meter.stop() == pytest.approx(watts)


def test_zeus_that_is_not_installed_or_knows_no_chip_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "zeus.device.soc", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'nni_latency\[zeus\]'"), ZeusMeter().session():
        pass

    def no_chip():
        raise RuntimeError("No observable SoC was found")

    monkeypatch.setitem(__import__("sys").modules, "zeus.device.soc", SimpleNamespace(get_soc=no_chip))
    with pytest.raises(MeasurementError, match=r"Zeus reads no chip here .*constant:WATTS"), ZeusMeter().session():
        pass


# The contract, and the bench ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_every_built_in_meter_keeps_the_contract(powercap, gpu, logger, plug, monkeypatch):
    monkeypatch.setattr(HttpMeter, "settling", 0.05)
    monkeypatch.setattr(HttpMeter, "watch", 0.1)
    check_meter(_rapl(powercap), lambda: powercap.sleep(0.01))
    check_meter(ConstantMeter(10, powercap.clock), lambda: powercap.sleep(0.01))
    for meter in (gpu("energy"), gpu("power"), CsvMeter(logger.path, offset=3.0, every=0.01)):
        check_meter(meter, lambda: time.sleep(0.005))
    check_meter(HttpMeter(plug(lambda: time.time() % 1e-3 + 5), every=0.01), lambda: time.sleep(0.005))


_PLAN, _BY_KEY = fake_plan({"a": {"x": 0.5, "y": 1.0}})


def _visit(meter_of, longest=1e9):
    runtime = FakeRuntime(_BY_KEY)
    protocol = Protocol(n_warmup=0, max_measure_execution_time=longest)
    with LocalBench(runtime, protocol, meters=[meter_of(runtime.clock)]) as bench:
        for subject in candidate_subjects(_PLAN)[0]:
            bench.admit(subject)
        return bench.visit(["a/y"])


def test_bench_keeps_energy_power_and_window():
    visit = _visit(lambda clock: FakeMeter(clock, 30.0))
    assert visit.samples == {"latency": [1.0], "energy": [30.0], "power": [30.0], "window": [1.0]}


def test_bench_finds_a_window_that_the_meter_resolves():
    visit = _visit(lambda clock: FakeMeter(clock, 2.0, resolution=1.0))
    assert visit.samples["window"][0] >= 10.0
    assert visit.samples["energy"] == [pytest.approx(2.0, rel=0.1)]
    assert _visit(lambda clock: FakeMeter(clock, 2.0, period=0.4)).samples["window"] == [8.0]


def test_a_window_that_was_planned_by_a_slow_run_is_read_again():
    runtime = FakeRuntime(_BY_KEY)
    meter = FakeMeter(runtime.clock, 30.0, period=0.4)
    with LocalBench(runtime, Protocol(n_warmup=0, max_measure_execution_time=1e9), meters=[meter]) as bench:
        # The first run took four seconds, and others one.
        found = bench._read(meter, lambda _: runtime.clock.advance(1.0), None, 4.0)
    assert (found["window"], found["energy"]) == ([8.0], [30.0])


@pytest.mark.parametrize("traits", [{"resolution": 1.0}, {"period": 0.5}])
def test_meter_that_is_too_coarse_says_the_window_that_it_needs(traits):
    message = r"^simulated is too coarse for this: it needs a window of 10\.?0* s"
    with pytest.raises(CoarseMeterError, match=message) as raised:
        _visit(lambda clock: FakeMeter(clock, 2.0, **traits), longest=5.0)
    # It comes from the process that measures as it is.
    assert cloudpickle.loads(cloudpickle.dumps(raised.value)).needed == pytest.approx(10.0)


def test_meter_that_dies_ends_the_visit_with_its_own_words():
    with pytest.raises(MeasurementError, match=r"simulated died"):
        _visit(lambda clock: FakeMeter(clock, 2.0, windows=0))


def _losing(count):
    """Return what a meter is asked for at the end of a window: so many times it was not read, then 30 W."""
    left = itertools.repeat(None, count)

    def watts():
        for _ in left:
            raise WindowLostError("simulated gave no reading for 2 s.")
        return 30.0

    return watts


def test_a_window_that_is_lost_is_measured_again():
    visit = _visit(lambda clock: FakeMeter(clock, _losing(4)))
    assert (visit.samples["energy"], visit.samples["window"]) == ([30.0], [1.0])


def test_a_meter_that_loses_every_window_is_given_up():
    with pytest.raises(MeasurementError, match=r"^simulated gave no reading for 2 s\. So were the 4 before it\.$"):
        _visit(lambda clock: FakeMeter(clock, _losing(5)))


def test_conditions_say_what_is_assumed_and_what_is_drawn_without_work():
    runtime = FakeRuntime(_BY_KEY)
    read = LocalBenches(runtime, [FakeMeter(runtime.clock, 30.0, idle=12.0)]).conditions()
    assert (read.meter, read.meter_assumption, read.idle_power) == ("simulated", None, 12.0)
    assumed = LocalBenches(runtime, [ConstantMeter(15)]).conditions()
    assert (assumed.meter_assumption, assumed.idle_power) == ("a constant power of 15 W", None)
