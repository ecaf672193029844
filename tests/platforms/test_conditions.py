# SPDX-License-Identifier: Apache-2.0
"""The state of a machine, read from made-up files of a kernel and from a made-up driver of a GPU."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nni_latency.errors import InvalidValueError, UnknownNameError
from nni_latency.platforms import CONDITIONS, FACTS, Conditions, affinity, collect_facts, read_conditions

TICK = 1 / os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")

KERNEL = {
    "proc/loadavg": "1.25 0.80 0.40 2/89 3110\n",
    "proc/stat": "cpu  1 1 1 1 1 1 1 1 0 0\n"
    "cpu0 100 10 20 5000 7 1 2 30 50 0\n"
    "cpu1 200 20 40 6000 8 3 4 50 60 0\n"
    "cpu2 900 90 90 7000 9 9 9 90 90 0\n"
    "intr 284520 0 0\nctxt 5\n",
    "proc/self/stat": "77 (a) b (c) R 1 77 77 0 -1 4194304 102 0 0 0 11 22 33 44 20 0 1 0 169312 3133440 383\n",
    "proc/cpuinfo": "processor\t: 0\nflags\t\t: fpu hypervisor\ncpu MHz\t\t: 2000.500\n\n"
    "processor\t: 1\nflags\t\t: fpu hypervisor\ncpu MHz\t\t: 3000.500\n\n"
    "processor\t: 2\nflags\t\t: fpu hypervisor\ncpu MHz\t\t: 9000.000\n",
    "proc/meminfo": "MemTotal:       24684084 kB\nMemFree:  1 kB\nMemAvailable:   2048 kB\n",
    "proc/vmstat": "pgpgin 5\npswpin 3\npswpout 9\n",
}

CPUFREQ = {
    f"sys/devices/system/cpu/cpu{number}/cpufreq/{name}": text
    for number, frequency, governor in ((0, "1000000", "powersave"), (1, "3000000", "powersave"), (2, "9", "ondemand"))
    for name, text in (("scaling_cur_freq", frequency + "\n"), ("scaling_governor", governor + "\n"))
}


@pytest.fixture
def machine(tmp_path):
    """Return a function that lays files of a kernel and reads their conditions for processors 0 and 1."""

    def read(*trees, device="cpu", processors=(0, 1), nvml=None):
        for path, text in [item for tree in trees for item in tree.items()]:
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text(text)
        return read_conditions(device, root=tmp_path, processors=processors, nvml=nvml)

    return read


def test_read_conditions_leaves_out_what_can_not_be_read(machine):
    assert set(machine().as_dict()) == {"taken", "processors"}


def test_read_conditions_reads_load_memory_and_paging(machine):
    read = machine(KERNEL)
    assert (read.load, read.memory_available, read.swap_in) == (1.25, 2048 * 1024, 3 * PAGE)


def test_read_conditions_adds_up_times_of_the_usable_processors_alone(machine):
    read = machine(KERNEL)
    assert (read.processors, read.processors_online) == (2, 3)
    assert read.busy == pytest.approx((100 + 10 + 20 + 1 + 2 + 200 + 20 + 40 + 3 + 4) * TICK)
    assert read.steal == pytest.approx((30 + 50) * TICK)


def test_read_conditions_reads_its_own_time_behind_a_strange_name(machine):
    assert machine(KERNEL).own_time == pytest.approx((11 + 22 + 33 + 44) * TICK)


def test_read_conditions_leaves_out_stolen_time_of_a_kernel_that_does_not_count_it(machine):
    read = machine({"proc/stat": "cpu0 1 2 3 4\n"}, processors=[0])
    assert (read.processors_online, read.busy, read.steal) == (1, None, None)


def test_read_conditions_takes_frequency_and_governor_of_the_usable_processors(machine):
    read = machine(KERNEL, CPUFREQ)
    assert (read.cpu_frequency, read.cpu_frequency_top, read.cpu_governor) == (2e9, 3e9, "powersave")


def test_read_conditions_names_every_governor(machine):
    assert machine(CPUFREQ, processors=[0, 1, 2]).cpu_governor == "ondemand, powersave"


def test_read_conditions_falls_back_to_the_frequency_of_cpuinfo(machine):
    read = machine(KERNEL, {"sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq": "<unknown>\n"})
    assert read.cpu_frequency == pytest.approx(2500.5e6)
    assert read.cpu_frequency_top == pytest.approx(3000.5e6)
    assert read.cpu_governor is None


@pytest.mark.parametrize(
    ("cpuinfo", "virtualised"),
    [
        ("flags : fpu hypervisor\n", True),
        ("flags : fpu\nbugs : hypervisor\n", False),
        ("Features : fp asimd\n", None),
        ("", None),
    ],
)
def test_read_conditions_sees_a_hypervisor_where_the_processor_tells(machine, cpuinfo, virtualised):
    assert machine({"proc/cpuinfo": cpuinfo}).virtualised is virtualised


def test_read_conditions_takes_the_tightest_quota_of_version_2_and_all_its_stops(machine):
    read = machine(
        {
            "proc/self/cgroup": "0::/shop/till\n",
            "sys/fs/cgroup/cpu.stat": "usage_usec 5\n",
            "sys/fs/cgroup/shop/cpu.max": "150000 100000\n",
            "sys/fs/cgroup/shop/cpu.stat": "usage_usec 5\nnr_periods 9\nnr_throttled 2\nthrottled_usec 500000\n",
            "sys/fs/cgroup/shop/till/cpu.max": "max 100000\n",
            "sys/fs/cgroup/shop/till/cpu.stat": "nr_throttled 1\nthrottled_usec 250000\n",
            "sys/fs/cgroup/other/cpu.max": "1000 100000\n",
        }
    )
    assert (read.cpu_quota, read.throttled_periods, read.throttled) == (1.5, 3, 0.75)


@pytest.mark.parametrize("folder", ["cpu", "cpu,cpuacct"])
def test_read_conditions_reads_the_quota_of_version_1_beside_version_2(machine, folder):
    read = machine(
        {
            "proc/self/cgroup": f"5:cpuset:/\n4:{folder}:/docker/gone\n0::/\n",
            f"sys/fs/cgroup/{folder}/cpu.cfs_quota_us": "50000\n",
            f"sys/fs/cgroup/{folder}/cpu.cfs_period_us": "100000\n",
            f"sys/fs/cgroup/{folder}/cpu.stat": "nr_periods 9\nnr_throttled 4\nthrottled_time 2000000000\n",
        }
    )
    assert (read.cpu_quota, read.throttled_periods, read.throttled) == (0.5, 4, 2.0)


def test_read_conditions_finds_version_1_under_its_short_name(machine):
    read = machine(
        {
            "proc/self/cgroup": "4:cpu,cpuacct:/\n",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/cpu/cpu.stat": "nr_throttled 0\nthrottled_time 0\n",
        }
    )
    assert (read.cpu_quota, read.throttled_periods, read.throttled) == (None, 0, 0.0)


@pytest.mark.parametrize("table", [{}, {"proc/self/cgroup": "0::/../../elsewhere\n"}])
def test_read_conditions_reads_the_quota_where_the_container_sees_it(machine, table):
    assert machine(table, {"sys/fs/cgroup/cpu.max": "200000 100000\n"}).cpu_quota == 2.0


def test_read_conditions_looks_at_the_processors_of_this_process(tmp_path):
    assert read_conditions(root=tmp_path).processors == len(affinity())


def test_read_conditions_stamps_its_readings_in_order(machine):
    assert machine().taken <= machine().taken


@pytest.mark.parametrize("device", ["tpu", "", "cuda:", "cuda:x", "CPU"])
def test_read_conditions_refuses_what_is_no_device(machine, device):
    with pytest.raises(UnknownNameError, match=rf"Unknown device {device!r}. Available: cpu, cuda:N."):
        machine(device=device)


class FakeDriver:
    """Answers as pynvml does for one GPU; an answer of None is an error of the driver."""

    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0

    class NVMLError(Exception):
        """The one root of all errors of pynvml."""

    def __init__(self, **answers):
        self.answers = {
            "ClockInfo": lambda kind: {1: 1410, 2: 1593}[kind],
            "MaxClockInfo": lambda kind: {1: 1980, 2: 9999}[kind],
            "TemperatureV": lambda _sensor: 41,
            "PowerUsage": 250_500,
            "EnforcedPowerLimit": 700_000,
            "CurrentClocksEventReasons": 0x4 | 0x20,
            "UtilizationRates": SimpleNamespace(gpu=75, memory=10),
            "ComputeRunningProcesses": [SimpleNamespace(pid=os.getpid()), SimpleNamespace(pid=5)],
            "GraphicsRunningProcesses": [SimpleNamespace(pid=4), SimpleNamespace(pid=5)],
        } | answers
        self.open = 0

    def nvmlInit(self):  # noqa: N802
        self.open += 1

    def nvmlShutdown(self):  # noqa: N802
        self.open -= 1

    def nvmlDeviceGetHandleByIndex(self, index):  # noqa: N802
        if index != 3:
            raise self.NVMLError
        return "handle 3"

    def __getattr__(self, name):
        call = name.removeprefix("nvmlDeviceGet")
        if call not in self.answers:
            raise AttributeError(name)

        def answer(handle, *arguments):
            assert (handle, self.open) == ("handle 3", 1)
            value = self.answers[call]
            if value is None:
                raise self.NVMLError
            return value(*arguments) if callable(value) else value

        return answer


@pytest.fixture
def gpu(machine, monkeypatch):
    """Return a function that reads the conditions of torch's second GPU, which is the driver's number 3."""
    monkeypatch.setattr("torch.cuda._get_nvml_device_index", {0: 8, 1: 3}.__getitem__)
    monkeypatch.setattr("torch.cuda.is_initialized", lambda: False)

    def read(driver=None, *trees, device="cuda:1"):
        driver = driver or FakeDriver()
        read = machine(*trees, device=device, nvml=driver)
        assert driver.open == 0
        return read

    return read


def only_gpu(read):
    return {name: value for name, value in read.as_dict().items() if name.startswith("gpu_")}


def test_read_conditions_of_a_gpu_reads_it_in_si_units(gpu):
    assert only_gpu(gpu()) == {
        "gpu_clock": 1410e6,
        "gpu_clock_max": 1980e6,
        "gpu_clock_reasons": ["power cap", "software thermal slowdown"],
        "gpu_memory_clock": 1593e6,
        "gpu_temperature": 41,
        "gpu_power": pytest.approx(250.5),
        "gpu_power_limit": pytest.approx(700),
        "gpu_utilisation": 0.75,
        "gpu_other_processes": [4, 5],
    }


def test_read_conditions_of_a_gpu_reads_the_processors_as_well(gpu):
    assert gpu(None, KERNEL).load == 1.25


@pytest.mark.parametrize("answer", [None, "absent"])
def test_read_conditions_of_a_gpu_asks_older_drivers_by_older_names(gpu, answer):
    driver = FakeDriver(
        TemperatureV=None, Temperature=52, CurrentClocksEventReasons=None, CurrentClocksThrottleReasons=0x1
    )
    driver.answers["Temperature"] = lambda _sensor: 52
    if answer == "absent":
        del driver.answers["TemperatureV"], driver.answers["CurrentClocksEventReasons"]
    read = gpu(driver)
    assert (read.gpu_temperature, read.gpu_clock_reasons) == (52, ("idle",))


@pytest.mark.parametrize(
    ("call", "field"),
    [
        ("MaxClockInfo", "gpu_clock_max"),
        ("TemperatureV", "gpu_temperature"),
        ("PowerUsage", "gpu_power"),
        ("EnforcedPowerLimit", "gpu_power_limit"),
        ("CurrentClocksEventReasons", "gpu_clock_reasons"),
        ("UtilizationRates", "gpu_utilisation"),
    ],
)
def test_read_conditions_of_a_gpu_leaves_out_one_answer_alone(gpu, call, field):
    everything = set(only_gpu(gpu()))
    assert set(only_gpu(gpu(FakeDriver(**{call: None})))) == everything - {field}


def test_read_conditions_of_a_gpu_takes_the_processes_that_it_is_told(gpu):
    assert gpu(FakeDriver(GraphicsRunningProcesses=None)).gpu_other_processes == (5,)
    assert gpu(FakeDriver(GraphicsRunningProcesses=None, ComputeRunningProcesses=None)).gpu_other_processes is None
    assert gpu(FakeDriver(GraphicsRunningProcesses=[], ComputeRunningProcesses=[])).gpu_other_processes == ()


def processes(*ids):
    return FakeDriver(
        ComputeRunningProcesses=[SimpleNamespace(pid=each) for each in ids], GraphicsRunningProcesses=None
    )


def test_read_conditions_of_a_gpu_knows_its_own_process_by_the_id_of_the_host(gpu, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_initialized", lambda: True)
    here = {"proc/800001/stat": ""}
    assert gpu(processes(900001), here).gpu_other_processes == ()
    assert gpu(processes(800001, 900001)).gpu_other_processes == (800001,)
    assert gpu(processes(900001, 900002)).gpu_other_processes == (900001, 900002)


def test_read_conditions_of_a_gpu_does_not_mistake_another_process_for_its_own(gpu, monkeypatch):
    assert gpu(processes(900001)).gpu_other_processes == (900001,)
    monkeypatch.setattr("torch.cuda.is_initialized", lambda: True)
    assert gpu(processes(os.getpid(), 900001)).gpu_other_processes == (900001,)


def test_read_conditions_of_a_gpu_leaves_out_processes_that_this_one_started(gpu):
    """The worker (7) of a process (6) that this one started; and one (8) that another started."""
    here = {
        "proc/6/stat": f"6 (a) name) S {os.getpid()} 6",
        "proc/7/stat": "7 (python) R 6 7",
        "proc/8/stat": "8 (python) R 5 8",
        "proc/5/stat": "5 (sh) S 1 5",
    }
    assert gpu(processes(7, 8), here).gpu_other_processes == (8,)


def test_read_conditions_of_a_gpu_goes_without_a_driver(machine):
    driver = FakeDriver()

    def no_driver():
        raise driver.NVMLError

    driver.nvmlInit = no_driver
    assert only_gpu(machine(device="cuda:1", nvml=driver)) == {}


def test_read_conditions_of_a_gpu_goes_without_one_of_that_number(gpu):
    assert only_gpu(gpu(device="cuda")) == {}


def test_read_conditions_of_a_gpu_goes_without_one_that_is_hidden(gpu, monkeypatch):
    def hidden(index):
        raise RuntimeError(f"device {index} is not visible")

    monkeypatch.setattr("torch.cuda._get_nvml_device_index", hidden)
    assert only_gpu(gpu()) == {}


def test_read_conditions_asks_pynvml_unless_told_otherwise(gpu, monkeypatch):
    driver = FakeDriver()
    monkeypatch.setitem(sys.modules, "pynvml", driver)
    assert gpu(driver).gpu_clock == read_conditions("cuda:1").gpu_clock == 1410e6


def test_read_conditions_of_the_cpu_leaves_pynvml_alone(machine, monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert machine().gpu_clock is None


def test_conditions_describes_every_field():
    assert [item.name for item in CONDITIONS] == [item.name for item in dataclasses.fields(Conditions)]
    assert all(item.meaning for item in CONDITIONS)


def test_conditions_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError, match=r"cannot assign to field 'load'"):
        Conditions().load = 1.0  # type: ignore[misc]


@pytest.mark.parametrize(
    ("field", "value", "kind"),
    [
        ("load", "high", "a finite number"),
        ("load", True, "a finite number"),
        ("load", float("nan"), "a finite number"),
        ("load", float("inf"), "a finite number"),
        ("processors", 1.5, "an int"),
        ("processors", True, "an int"),
        ("virtualised", 1, "a bool"),
        ("cpu_governor", 5, "text"),
        ("gpu_clock_reasons", "power cap", "a tuple of texts"),
        ("gpu_clock_reasons", [5], "a tuple of texts"),
        ("gpu_other_processes", [5, None], "a tuple of ints"),
    ],
)
def test_conditions_refuses_a_value_of_another_type(field, value, kind):
    with pytest.raises(InvalidValueError, match=rf"The '{field}' of Conditions must be {kind} or None\. Got "):
        Conditions.from_dict({field: value})


def test_conditions_passes_over_names_that_it_does_not_know():
    assert Conditions.from_dict({"weather": "fine", "load": None}) == Conditions()


numbers = st.none() | st.floats(allow_nan=False, allow_infinity=False)
VALUES = {
    "float | None": numbers,
    "int | None": st.none() | st.integers(),
    "bool | None": st.none() | st.booleans(),
    "str | None": st.none() | st.text(),
    "tuple[str, ...] | None": st.none() | st.lists(st.text(), max_size=3).map(tuple),
    "tuple[int, ...] | None": st.none() | st.lists(st.integers(), max_size=3).map(tuple),
}


@given(st.builds(Conditions, **{item.name: VALUES[item.type] for item in dataclasses.fields(Conditions)}))
def test_conditions_come_back_from_json(conditions):
    text = json.dumps(conditions.as_dict(), allow_nan=False)
    assert "null" not in json.loads(text).values()
    assert Conditions.from_dict(json.loads(text)) == conditions


def test_collect_facts_tells_the_usable_processors_and_does_not_compare_them(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {2, 3, 4, 9}, raising=False)
    facts = collect_facts("cpu")
    assert (facts["cpu_count"], facts["cpu_affinity"]) == (4, "2-4,9")
    assert not next(fact for fact in FACTS if fact.name == "cpu_affinity").identity
