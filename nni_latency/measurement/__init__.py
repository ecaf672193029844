"""Measuring: protocol, timed loop, rounds, trimming, and the record of an experiment."""

from nni_latency.measurement._chain import Clock, PerfClock, Stage, time_chain, time_repeatedly
from nni_latency.measurement._measurement import Measurement, Summary
from nni_latency.measurement._network import measure_network
from nni_latency.measurement._protocol import Protocol
from nni_latency.measurement._rounds import balanced_round
from nni_latency.measurement._trimming import quantile, quantile_interval, trim

__all__ = [
    "Clock",
    "Measurement",
    "PerfClock",
    "Protocol",
    "Stage",
    "Summary",
    "balanced_round",
    "measure_network",
    "quantile",
    "quantile_interval",
    "time_chain",
    "time_repeatedly",
    "trim",
]
