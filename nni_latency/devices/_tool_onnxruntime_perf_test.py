# SPDX-License-Identifier: Apache-2.0
"""``onnxruntime_perf_test``: the benchmark binary of ONNX Runtime."""

from __future__ import annotations

import re
from typing import Any

from nni_latency.devices._tool import Start, Tool, UnreadableError, Written

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

    def outputs(self, start: Start) -> list[str]:
        """Return the result, the profile if layers are wanted, and at first the optimised network."""
        layers, first = ["profile"] * start.with_layers, ["optimised.onnx"] * start.is_first
        return ["result", *layers, *first]

    def samples(self, written: Written, start: Start) -> list[float]:
        """Read the second column of the result: the time of every run [s], in old versions [ns]."""
        rows = [line.split(",") for line in written.file("result").splitlines() if line.count(",") > 1]
        try:
            times = [float(row[1]) for row in rows]
        except ValueError as error:
            raise UnreadableError("the second column of its result file has something else than a number") from error
        if len(times) <= start.warmups:
            raise UnreadableError("its result file has no line for every run")
        return [seconds * (1e-9 if seconds > 1e4 else 1.0) for seconds in times[start.warmups :]]

    def version(self, text: str) -> str | None:
        """Find the version, where it is printed."""
        found = re.search(r"ONNX ?Runtime(?: version)?:? v?(\d+\.\d+\.\d+)", text, re.IGNORECASE)
        return found[1] if found else None


def events_of(written: Written) -> list[dict[str, Any]]:
    """Return the events of the profile that it has written."""
    events = written.json("profile")
    if not isinstance(events, list) or not any(event.get("name") == "model_run" for event in events):
        raise UnreadableError("its profile has no event 'model_run'")
    return events
