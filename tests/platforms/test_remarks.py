# SPDX-License-Identifier: Apache-2.0
"""What is said of an unsteady machine, and that nothing is said of a quiet one."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nni_latency.platforms import Conditions, Remark, remarks_on

QUIET = Conditions(
    taken=100.0,
    processors=4,
    processors_online=4,
    load=1.0,
    busy=50.0,
    own_time=40.0,
    cpu_frequency=2e9,
    cpu_frequency_top=3e9,
    cpu_governor="performance",
    virtualised=True,
    steal=5.0,
    cpu_quota=2.0,
    throttled=1.0,
    throttled_periods=7,
    memory_available=8 << 30,
    swap_in=1 << 30,
    gpu_clock=1.8e9,
    gpu_clock_max=1.98e9,
    gpu_clock_reasons=(),
    gpu_memory_clock=1.5e9,
    gpu_temperature=60.0,
    gpu_power=400.0,
    gpu_power_limit=700.0,
    gpu_utilisation=0.95,
    gpu_other_processes=(),
)


def later(seconds=10.0, **changes):
    """Return the quiet machine some time later, after one of its four processors has worked for this process."""
    moved = {"taken": 100.0 + seconds, "busy": 50.0 + seconds, "own_time": 40.0 + seconds}
    return dataclasses.replace(QUIET, **(moved | changes))


def said(before, after=None):
    return [str(remark) for remark in remarks_on(before, after)]


def test_remark_is_read_as_its_condition_and_its_advice():
    assert str(Remark("It rains.", "Wait.")) == "It rains. Wait."


def test_remarks_on_a_quiet_machine_are_none():
    assert remarks_on(QUIET, later()) == remarks_on(QUIET) == []


def test_remarks_on_nothing_known_are_none():
    assert remarks_on(Conditions(), Conditions()) == remarks_on(QUIET, Conditions()) == []


@pytest.mark.parametrize("governor", ["performance", "userspace", "performance, userspace"])
def test_remarks_on_accepts_steady_governors(governor):
    assert remarks_on(Conditions(cpu_governor=governor)) == []


def test_remarks_on_names_the_unsteady_governors_alone():
    assert said(Conditions(cpu_governor="ondemand, performance, powersave")) == [
        "The frequency governor is 'ondemand' or 'powersave': clocks rise and fall with the load. "
        "Set it with: echo performance | sudo tee /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor"
    ]


def test_remarks_on_a_load_above_the_processors_of_the_machine():
    busy = Conditions(load=4.6, processors=2, processors_online=4)
    assert said(busy) == [
        "The load was 4.6 on 4 processors: others are at work. "
        "Stop them, which 'top' lists, or wait until they are done."
    ]
    assert remarks_on(dataclasses.replace(busy, load=4.5)) == []
    assert "on 1 processor:" in said(Conditions(load=2.0, processors=1))[0]


def test_remarks_on_other_processes_leaves_out_the_work_of_its_own():
    assert said(QUIET, later(busy=50 + 10 + 4)) == [
        "Other processes took 10.0 % of the processors' time. "
        "Stop them, which 'top' lists, or wait until they are done."
    ]
    assert remarks_on(QUIET, later(busy=50 + 10 + 1.9)) == []


def test_remarks_on_believes_the_time_in_between_more_than_the_load():
    assert remarks_on(dataclasses.replace(QUIET, load=9.0), later(load=9.0)) == []


def test_remarks_on_stolen_time():
    assert said(QUIET, later(steal=5.0 + 0.5)) == [
        "The host of this virtual machine withheld 1.2 % of the processors' time: it is busy. "
        "Measure again at a quieter time, or on a dedicated machine."
    ]


def test_remarks_on_little_stolen_time_are_mild():
    (remark,) = remarks_on(QUIET, later(steal=5.0 + 0.1))
    assert remark.condition == "This is a virtual machine, and its host withheld 0.2 % of the processors' time."
    assert remark.advice == "This is little; measure once more to see that the values hold."


def test_remarks_on_hardly_any_stolen_time_are_none():
    assert remarks_on(QUIET, later(steal=5.0 + 0.03)) == []


def test_remarks_on_a_short_span_do_not_rate_single_ticks():
    assert remarks_on(QUIET, later(seconds=0.5, steal=5.0 + 0.1, busy=50 + 0.5 + 1)) == []


def test_remarks_on_a_machine_that_started_anew_do_not_rate_counters():
    restarted = later(steal=0.0, busy=0.0, own_time=0.0, throttled=0.0, throttled_periods=0, swap_in=0)
    assert remarks_on(QUIET, restarted) == []
    assert remarks_on(QUIET, later(taken=3.0, steal=50.0, busy=900.0)) == []


def test_remarks_on_a_quota_that_stopped_the_process():
    assert said(QUIET, later(throttled_periods=8, throttled=1.25)) == [
        "The CPU quota of 2 processors stopped the processes of this container 1 time, for 250 ms of processor time. "
        "Raise the quota, or measure with fewer threads than it has processors."
    ]
    bare = [Conditions(throttled_periods=count) for count in (1, 4)]
    assert said(*bare)[0].startswith("The CPU quota stopped the processes of this container 3 times. ")


def test_remarks_on_swapping():
    (remark,) = remarks_on(QUIET, later(swap_in=(1 << 30) + (5 << 20)))
    assert remark.condition == "5 MiB were read back from swap: memory was short."
    assert remarks_on(QUIET, later(swap_in=(1 << 30) + 4096)) == []


def test_remarks_on_memory_take_the_lower_reading():
    low = dataclasses.replace(QUIET, memory_available=100 << 20)
    (remark,) = remarks_on(low, later())
    assert remark.condition == "Only 100 MiB of memory were available."


def test_remarks_on_a_frequency_that_fell():
    (remark,) = remarks_on(QUIET, later(cpu_frequency_top=2.6e9))
    assert remark.condition == "The processors' frequency fell from 3.00 GHz to 2.60 GHz."
    assert remarks_on(QUIET, later(cpu_frequency_top=2.8e9)) == []


def test_remarks_on_the_mean_frequency_only_where_the_fastest_is_unknown():
    assert remarks_on(QUIET, later(cpu_frequency=1e9)) == []
    assert len(remarks_on(Conditions(cpu_frequency=3e9), Conditions(cpu_frequency=1e9))) == 1
    assert remarks_on(Conditions(cpu_frequency=1e9), Conditions(cpu_frequency=3e9)) == []


@pytest.mark.parametrize(
    ("reasons", "beginning"),
    [
        (("power cap",), "The GPU lowered its clocks to save power at a limit of 700 W (power cap). Raise the limit"),
        (
            ("power brake", "hardware slowdown"),
            "The GPU lowered its clocks to save power at a limit of 700 W (power brake). Raise the limit",
        ),
        (
            ("hardware slowdown", "hardware thermal slowdown"),
            "The GPU lowered its clocks because of heat (hardware thermal slowdown). Improve its cooling",
        ),
        (("hardware slowdown",), "The GPU lowered its clocks (hardware slowdown). See what limits them"),
        (("sync boost", "reason 0x800"), "The GPU lowered its clocks (sync boost, reason 0x800). See what"),
    ],
)
def test_remarks_on_clock_reasons_say_what_to_do(reasons, beginning):
    (line,) = said(QUIET, later(gpu_clock_reasons=reasons))
    assert line.startswith(beginning)


@pytest.mark.parametrize("reason", ["idle", "application clocks"])
def test_remarks_on_clock_reasons_pass_over_the_harmless(reason):
    assert remarks_on(QUIET, later(gpu_clock_reasons=(reason,))) == []


def test_remarks_on_clock_reasons_say_each_once():
    hot = {"gpu_clock_reasons": ("power cap", "software thermal slowdown")}
    lines = said(dataclasses.replace(QUIET, **hot), later(**hot))
    assert [line.partition("(")[2].partition(")")[0] for line in lines] == ["power cap", "software thermal slowdown"]


def test_remarks_on_a_hot_gpu():
    assert said(QUIET, later(gpu_temperature=88.0)) == [
        "The GPU is at 88 C, where it begins to lower its clocks. "
        "Improve its cooling, or let it rest between measurements."
    ]
    assert remarks_on(QUIET, later(gpu_temperature=85.0)) == []


def test_remarks_on_a_busy_gpu_far_below_its_highest_clock():
    (remark,) = remarks_on(QUIET, later(gpu_clock=0.99e9))
    assert remark.condition == "The busy GPU ran at 0.99 GHz, 50.0 % of its highest clock."
    assert "nvidia-smi --reset-gpu-clocks" in remark.advice


@pytest.mark.parametrize(
    "state", [{"gpu_utilisation": 0.1}, {"gpu_clock_reasons": ("application clocks",)}, {"gpu_utilisation": None}]
)
def test_remarks_on_low_gpu_clocks_accept_a_good_reason(state):
    assert remarks_on(QUIET, later(gpu_clock=0.3e9, **state)) == []


def test_remarks_on_a_gpu_clock_that_fell():
    (remark,) = remarks_on(QUIET, later(gpu_clock=1.5e9))
    assert remark.condition == "The GPU's clock fell from 1.80 GHz to 1.50 GHz."


def test_remarks_on_other_processes_of_the_gpu_at_either_end():
    crowded = dataclasses.replace(QUIET, gpu_other_processes=(12, 7))
    (remark,) = remarks_on(crowded, later(gpu_other_processes=(7, 9)))
    assert remark.condition == "3 other processes used the GPU (7, 9, 12)."
    assert said(crowded, later()) == said(crowded)
    assert said(QUIET, later(gpu_other_processes=(7,)))[0].startswith("1 other process used the GPU (7). ")


@pytest.mark.slow
@given(st.data())
def test_remarks_on_anything_are_full_sentences(data):
    numbers = {
        item.name: st.none() | (st.integers(0, 10**12) if "int" in item.type else st.floats(0, 1e12))
        for item in dataclasses.fields(Conditions)
        if item.type in {"int | None", "float | None"}
    }
    before, after = (data.draw(st.builds(Conditions, **numbers)) for _ in range(2))
    for remark in remarks_on(before, after):
        assert remark.condition[0].isupper() or remark.condition[0].isdigit()
        assert remark.condition.endswith(".")
        assert remark.advice[0].isupper()


def test_processors_that_were_slowed_down_are_named():
    (remark,) = remarks_on(Conditions(cpu_slowed=False), Conditions(cpu_slowed=True, cpu_temperature=84.5))
    assert str(remark).startswith("The processors were slowed down at 84 C. Improve the cooling")
    assert remarks_on(Conditions(cpu_slowed=False, cpu_temperature=84.5)) == []
