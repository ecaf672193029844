"""Measuring: subjects and schedules, the one loop, benches and runtimes, and the records that come of it."""

from typing import TYPE_CHECKING

from nni_latency.imports import lazy_exports
from nni_latency.measurement._bench import Bench, CandidateError, LocalBench, WorkerDiedError
from nni_latency.measurement._campaign import Campaign
from nni_latency.measurement._chain import Clock, PerfClock, Stage, time_chain
from nni_latency.measurement._isolation import Benches, IsolatedBench, LocalBenches
from nni_latency.measurement._measurement import Measurement, Summary
from nni_latency.measurement._meter import Meter
from nni_latency.measurement._network import measure_network
from nni_latency.measurement._network_schedule import NetworkSchedule, is_narrow
from nni_latency.measurement._protocol import Protocol
from nni_latency.measurement._record import Failure, Record, Visit
from nni_latency.measurement._rounds import balanced_round, light_network
from nni_latency.measurement._schedule import Progress, Schedule
from nni_latency.measurement._store import CampaignHeader, CampaignLog, MemoryStore, Store, StoredCampaign
from nni_latency.measurement._subject import Build, Chain, Subject, compose
from nni_latency.measurement._trimming import fewest_samples, quantile, quantile_interval, trim, windows_agree

if TYPE_CHECKING:
    from nni_latency.measurement._attribution import CallMap, NetworkCalls, attribute, operator_times
    from nni_latency.measurement._cold import cold_chain
    from nni_latency.measurement._memory import activation_memory, cuda_activation_memory, parameter_memory

__all__ = [
    "Bench",
    "Benches",
    "Build",
    "CallMap",
    "Campaign",
    "CampaignHeader",
    "CampaignLog",
    "CandidateError",
    "Chain",
    "Clock",
    "Failure",
    "IsolatedBench",
    "LocalBench",
    "LocalBenches",
    "Measurement",
    "MemoryStore",
    "Meter",
    "NetworkCalls",
    "NetworkSchedule",
    "PerfClock",
    "Progress",
    "Protocol",
    "Record",
    "Schedule",
    "Stage",
    "Store",
    "StoredCampaign",
    "Subject",
    "Summary",
    "Visit",
    "WorkerDiedError",
    "activation_memory",
    "attribute",
    "balanced_round",
    "cold_chain",
    "compose",
    "cuda_activation_memory",
    "fewest_samples",
    "is_narrow",
    "light_network",
    "measure_network",
    "operator_times",
    "parameter_memory",
    "quantile",
    "quantile_interval",
    "time_chain",
    "trim",
    "windows_agree",
]

# They need torch, and the rest of this room does not.
__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "CallMap": "nni_latency.measurement._attribution",
        "NetworkCalls": "nni_latency.measurement._attribution",
        "activation_memory": "nni_latency.measurement._memory",
        "attribute": "nni_latency.measurement._attribution",
        "cold_chain": "nni_latency.measurement._cold",
        "cuda_activation_memory": "nni_latency.measurement._memory",
        "operator_times": "nni_latency.measurement._attribution",
        "parameter_memory": "nni_latency.measurement._memory",
    },
)
