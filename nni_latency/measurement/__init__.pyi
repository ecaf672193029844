from ._attribution import CallMap, NetworkCalls, attribute, operator_times
from ._bench import Bench, CandidateError, LocalBench, Visited, WorkerDiedError
from ._campaign import Campaign
from ._chain import Clock, PerfClock, Stage, time_chain
from ._cold import NETWORK_TRAFFIC, cold_chain, flush_size
from ._fallback import Fallback, fallbacks_of, summarise_fallbacks
from ._isolation import Benches, IsolatedBench, LocalBenches
from ._measurement import Measurement, Summary
from ._memory import activation_memory, cuda_activation_memory, parameter_memory
from ._meter import CoarseMeterError, Meter, WindowLostError
from ._network import measure_network
from ._network_schedule import NetworkSchedule, is_narrow
from ._packing import pack_subject, unpack_subject
from ._protocol import Protocol
from ._record import Failure, Record, Visit
from ._remote import Remote, WorkerState
from ._rounds import balanced_round, light_network
from ._schedule import Progress, Schedule
from ._store import BEING_MEASURED, CampaignHeader, CampaignLog, KnownLatency, MemoryStore, Store, StoredCampaign
from ._subject import Build, Chain, Kind, Subject, compose
from ._trimming import fewest_samples, quantile, quantile_interval, trim, windows_agree
from ._visits import NetworkSummary, summarise_visits
from ._worker_process import Limits, WorkerProcess

__all__ = [
    "BEING_MEASURED",
    "NETWORK_TRAFFIC",
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
    "CoarseMeterError",
    "Failure",
    "Fallback",
    "IsolatedBench",
    "Kind",
    "KnownLatency",
    "Limits",
    "LocalBench",
    "LocalBenches",
    "Measurement",
    "MemoryStore",
    "Meter",
    "NetworkCalls",
    "NetworkSchedule",
    "NetworkSummary",
    "PerfClock",
    "Progress",
    "Protocol",
    "Record",
    "Remote",
    "Schedule",
    "Stage",
    "Store",
    "StoredCampaign",
    "Subject",
    "Summary",
    "Visit",
    "Visited",
    "WindowLostError",
    "WorkerDiedError",
    "WorkerProcess",
    "WorkerState",
    "activation_memory",
    "attribute",
    "balanced_round",
    "cold_chain",
    "compose",
    "cuda_activation_memory",
    "fallbacks_of",
    "fewest_samples",
    "flush_size",
    "is_narrow",
    "light_network",
    "measure_network",
    "operator_times",
    "pack_subject",
    "parameter_memory",
    "quantile",
    "quantile_interval",
    "summarise_fallbacks",
    "summarise_visits",
    "time_chain",
    "trim",
    "unpack_subject",
    "windows_agree",
]
