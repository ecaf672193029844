"""Measuring: protocol, timed loop, rounds, trimming, memory, and the record of an experiment."""

from typing import TYPE_CHECKING

from nni_latency.imports import lazy_exports
from nni_latency.measurement._bench import Bench, CandidateError, LocalBench, Visit, WorkerDiedError
from nni_latency.measurement._chain import Clock, PerfClock, Stage, time_chain, time_repeatedly
from nni_latency.measurement._isolation import IsolatedBench, open_bench
from nni_latency.measurement._measurement import Measurement, Summary
from nni_latency.measurement._network import compose, measure_network
from nni_latency.measurement._protocol import Protocol
from nni_latency.measurement._record import Failure, Record
from nni_latency.measurement._rounds import balanced_round, light_network
from nni_latency.measurement._store import CampaignHeader, CampaignLog, MemoryStore, Store, StoredCampaign
from nni_latency.measurement._subject import Subject
from nni_latency.measurement._trimming import fewest_samples, quantile, quantile_interval, trim, windows_agree
from nni_latency.measurement._visits import NetworkVisits, visit_networks

if TYPE_CHECKING:
    from nni_latency.measurement._carrier import ModuleWithInputs
    from nni_latency.measurement._cold import cold_columns
    from nni_latency.measurement._memory import activation_memory, cuda_activation_memory, parameter_memory

__all__ = [
    "Bench",
    "CampaignHeader",
    "CampaignLog",
    "CandidateError",
    "Clock",
    "Failure",
    "IsolatedBench",
    "LocalBench",
    "Measurement",
    "MemoryStore",
    "ModuleWithInputs",
    "NetworkVisits",
    "PerfClock",
    "Protocol",
    "Record",
    "Stage",
    "Store",
    "StoredCampaign",
    "Subject",
    "Summary",
    "Visit",
    "WorkerDiedError",
    "activation_memory",
    "balanced_round",
    "cold_columns",
    "compose",
    "cuda_activation_memory",
    "fewest_samples",
    "light_network",
    "measure_network",
    "open_bench",
    "parameter_memory",
    "quantile",
    "quantile_interval",
    "time_chain",
    "time_repeatedly",
    "trim",
    "visit_networks",
    "windows_agree",
]

# They need torch, and the rest of this room does not.
__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "ModuleWithInputs": "nni_latency.measurement._carrier",
        "activation_memory": "nni_latency.measurement._memory",
        "cold_columns": "nni_latency.measurement._cold",
        "cuda_activation_memory": "nni_latency.measurement._memory",
        "parameter_memory": "nni_latency.measurement._memory",
    },
)
