# SPDX-License-Identifier: Apache-2.0
"""``benchmark_model``: the benchmark binary of LiteRT, which was TFLite."""

from __future__ import annotations

import re

from nni_latency.devices._tool import Start, Tool, Written, numbers

#: A line of statistics over runs [us]; that of the timed ones is the last. Newer versions add the median to it.
_STATISTICS = re.compile(r"\bcount=\d+ .*$", re.MULTILINE)


class BenchmarkModel(Tool):
    """LiteRT on the processor, with XNNPACK; it reports statistics over runs, of which the median is taken.

    References
    ----------
    .. [1] https://github.com/google-ai-edge/LiteRT/blob/main/tflite/tools/benchmark/README.md
    """

    name = "benchmark_model"
    runtime = "litert"
    form = "tflite"
    precisions = ("fp32", "fp16")

    def command(self, start: Start) -> list[str]:
        """Return the command; it would run for a second at least unless told otherwise."""
        return [
            start.binary,
            f"--graph={start.model}",
            f"--num_threads={start.threads}",
            f"--num_runs={start.runs}",
            f"--warmup_runs={start.warmups}",
            "--min_secs=0",
            "--warmup_min_secs=0",
            "--use_xnnpack=true",
            *(["--xnnpack_force_fp16=true"] if start.precision == "fp16" else []),
        ]

    def samples(self, written: Written, start: Start) -> list[float]:
        """Read the median of the timed runs; their mean, where that is not printed."""
        (mean,) = numbers(r"Inference \(avg\): *([0-9.e+]+)", written.text, "'Inference (avg): NUMBER'")[-1:]
        lines = _STATISTICS.findall(written.text)
        median = re.search(r"\b(?:median|p50)=([0-9.e+]+)", lines[-1]) if lines else None
        return [1e-6 * (float(median[1]) if median else mean)]
