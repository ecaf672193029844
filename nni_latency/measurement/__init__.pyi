from ._attribution import CallMap, NetworkCalls, attribute, operator_times
from ._bench import Bench, CandidateError, LocalBench, WorkerDiedError
from ._campaign import Campaign
from ._chain import Clock, PerfClock, Stage, time_chain
from ._cold import cold_chain
from ._fallback import Fallback, fallbacks_of, summarise_fallbacks
from ._isolation import Benches, IsolatedBench, LocalBenches
from ._measurement import Measurement, Summary
from ._memory import activation_memory, cuda_activation_memory, parameter_memory
from ._meter import Meter
from ._network import measure_network
from ._network_schedule import NetworkSchedule, is_narrow
from ._protocol import Protocol
from ._record import Failure, Record, Visit
from ._rounds import balanced_round, light_network
from ._schedule import Progress, Schedule
from ._store import CampaignHeader, CampaignLog, MemoryStore, Store, StoredCampaign
from ._subject import Build, Chain, Kind, Subject, compose
from ._trimming import fewest_samples, quantile, quantile_interval, trim, windows_agree

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
    "Fallback",
    "IsolatedBench",
    "Kind",
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
    "fallbacks_of",
    "fewest_samples",
    "is_narrow",
    "light_network",
    "measure_network",
    "operator_times",
    "parameter_memory",
    "quantile",
    "quantile_interval",
    "summarise_fallbacks",
    "time_chain",
    "trim",
    "windows_agree",
]
