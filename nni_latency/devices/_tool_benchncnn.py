# SPDX-License-Identifier: Apache-2.0
"""``benchncnn``: the benchmark binary of ncnn."""

from __future__ import annotations

from nni_latency.devices._tool import Start, Tool, Written, numbers


class BenchNcnn(Tool):
    """ncnn on the processor. It prints the minimum, the maximum and the mean of its runs, of which the mean is taken.

    It fills weights with zeros itself, so no weights are sent. It always lets ncnn compute in 16 bits where
    the processor can.

    References
    ----------
    .. [1] https://github.com/Tencent/ncnn/tree/master/benchmark
    """

    name = "benchncnn"
    runtime = "ncnn"
    form = "ncnn"
    precisions = ("fp16",)
    unread = ("model.bin",)
    # It knows no --help: every argument is a number, and no runs of a network that is not there end at once.
    probe = ("1", "1", "0", "-1", "0", "param=none.param", "shape=[1,1,1]")

    def command(self, start: Start) -> list[str]:
        """Return the command: runs, threads, all cores, no GPU, no pause before; shapes from the last axis on."""
        shapes = (shape[:0:-1] for shape in start.shapes)
        listed = ",".join(f"[{','.join(map(str, shape))}]" for shape in shapes)
        numbers_first = [str(start.runs), str(start.threads), "0", "-1", "0"]
        return [start.binary, *numbers_first, f"param={start.model}", f"shape={listed}"]

    def samples(self, written: Written, start: Start) -> list[float]:
        """Read the mean of the runs [ms]."""
        return [1e-3 * mean for mean in numbers(r"avg = *([0-9.]+)", written.text, "'avg = NUMBER'")[-1:]]
