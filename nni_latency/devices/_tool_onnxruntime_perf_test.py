# SPDX-License-Identifier: Apache-2.0
"""``onnxruntime_perf_test``: the benchmark binary of ONNX Runtime."""

from __future__ import annotations

from typing import Any

from nni_latency.devices._tool import Start, Tool, UnreadableError, Written, looking_for

#: Where the weights of the optimised network go, which is read for the names of its nodes.
_WITHOUT_WEIGHTS = (
    "session.optimized_model_external_initializers_file_name|weights "
    "session.optimized_model_external_initializers_min_size_in_bytes|1024"
)


class OnnxRuntimePerfTest(Tool):
    """ONNX Runtime on the processor. It writes the time of every run, and a profile of nodes.

    It runs a network once before those that it times; further warm-up runs are timed and left out.

    References
    ----------
    .. [1] https://github.com/microsoft/onnxruntime/blob/main/onnxruntime/test/perftest/README.md
    """

    name = "onnxruntime_perf_test"
    runtime = "onnxruntime"
    precisions = ("fp32", "int8")
    gives_layers = True
    plugin = "onnxruntime"
    probe = ("-h",)
    results = ("result",)
    layer_results = ("profile",)
    first_results = ("optimised.onnx",)
    version_pattern = r"(?i)ONNX ?Runtime(?: version)?:? v?(\d+\.\d+\.\d+)"

    def command(self, start: Start) -> list[str]:
        """Return the command: so many runs on inputs that it makes, in one thread for each node."""
        profile = ["-p", f"{start.folder}/profile"] if start.with_layers else []
        optimised = ["-u", f"{start.folder}/optimised.onnx", "-C", _WITHOUT_WEIGHTS] if start.is_first else []
        runs = ["-m", "times", "-r", str(start.runs + start.warmups)]
        threads = ["-x", str(start.threads), "-y", "1"]
        return [
            start.binary,
            "-I",
            "-z",
            *runs,
            *threads,
            "-o",
            "99",
            *profile,
            *optimised,
            start.model,
            f"{start.folder}/result",
        ]

    def samples(self, written: Written, start: Start) -> list[float]:
        """Read the second column of the result: the time of every run [s], in old versions [ns]."""
        rows = [line.split(",") for line in written.file("result").splitlines() if line.count(",") > 1]
        with looking_for("numbers alone into the second column of its result file"):
            times = [float(row[1]) for row in rows]
        if len(times) <= start.warmups:
            raise UnreadableError("its result file has no line for every run")
        return [seconds * (1e-9 if seconds > 1e4 else 1.0) for seconds in times[start.warmups :]]


def events_of(written: Written) -> list[dict[str, Any]]:
    """Return the events of the profile that it has written."""
    events = written.json("profile")
    if not isinstance(events, list) or not any(event.get("name") == "model_run" for event in events):
        raise UnreadableError("its profile has no event 'model_run'")
    return events
