"""Draw every picture of the documentation's gallery, by the commands that stand above the pictures in docs/gallery.rst.

    python examples/gallery.py                # pictures in docs/images/gallery, about fifteen minutes

The commands run in a temporary folder, on this machine and with short budgets, and are printed before they run.
"""

from __future__ import annotations

import argparse
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from nni_latency.measurement import Protocol
from nni_latency.measurement.runtimes import TorchEager
from nni_latency.micro_benchmarks import draw_blocks, run_benchmarks

DOCS = Path(__file__).resolve().parents[1] / "docs"

#: The network that is divided into kernels.
NETWORK = Path(__file__).with_name("residual_network.py")

#: Blocks that the fit of the micro-benchmarks is tried on, and the time spent measuring them [s].
N_BLOCKS, BUDGET = 40, 10.0


def main() -> None:
    """Run the commands and collect the pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=DOCS / "images" / "gallery", help="folder of the pictures")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        measure_others(work / "others.json")
        shutil.copy(NETWORK, work / "net.py")
        for command in commands():
            print(f"$ nni-latency {shlex.join(command)}", flush=True)
            program = [sys.executable, "-m", "nni_latency"]
            subprocess.run([*program, *command], check=True, cwd=work, stdout=subprocess.DEVNULL)
        for picture in sorted(work.rglob("*.png")):
            shutil.copy(picture, options.out)
            print(f"Wrote {options.out / picture.name}")


def commands() -> list[list[str]]:
    """Return the commands of the gallery, without the program's name."""
    text = (DOCS / "gallery.rst").read_text(encoding="utf-8")
    return [shlex.split(line) for line in re.findall(r"^   \$ nni-latency (.+)$", text, re.MULTILINE)]


def measure_others(path: Path) -> None:
    """Measure blocks that the micro-benchmarks do not have."""
    print(f"Measuring {N_BLOCKS} random blocks, to try the fit on", flush=True)
    series = [(block, (1,)) for block in draw_blocks(N_BLOCKS)]
    run_benchmarks(TorchEager(), Protocol(n_warmup=0, time_budget=BUDGET), path, series=series)


if __name__ == "__main__":
    main()
