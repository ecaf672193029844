"""A service with its page in one command: ResNet-18 is asked for twice, first measured, then known.

Run it with ``make demo-service``; Ctrl-C ends it. ``--once`` ends it after the questions.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import tempfile
from pathlib import Path

from nni_latency.graphs import families, save_onnx
from nni_latency.query import LatencyClient
from nni_latency.units import format_seconds


def main() -> None:
    """Run the service, and ask it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runtime", default="onnxruntime", help="what measures")
    parser.add_argument("--port", default="8765", help="where the service listens")
    parser.add_argument("--once", action="store_true", help="end after the questions")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(KeyboardInterrupt):
        _run(Path(folder), options)


def _run(folder: Path, options: argparse.Namespace) -> None:
    network = folder / "resnet18.onnx"
    save_onnx(families()["resnet"], 0, network, 1)
    words = ["serve", "--database", str(folder / "demo.sqlite"), "--platforms", options.runtime, "--port", options.port]
    command = [sys.executable, "-m", "nni_latency", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            said = process.stdout.readline().split()
            if not said:
                raise SystemExit("The service did not start.")
            _ask(LatencyClient(said[-1]), network)
            print(f"The page is at {said[-1]}. Ctrl-C ends the service.")
            if not options.once:
                process.wait()
        finally:
            process.terminate()


def _ask(client: LatencyClient, network: Path) -> None:
    platform = next(item for item in client.platforms())
    for _ in range(2):
        answer = client.query(network, platform, measure="always")
        interval = f"{format_seconds(answer.low)} to {format_seconds(answer.high)}"
        print(f"{network.name} on {platform}: {format_seconds(answer.value)} ({interval}), {answer.source}")
    client.close()


if __name__ == "__main__":
    main()
