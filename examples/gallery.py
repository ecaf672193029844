# SPDX-License-Identifier: Apache-2.0
"""Draw every picture of the documentation's gallery, by the commands that stand above the pictures in docs/gallery.rst.

    python examples/gallery.py                # pictures in docs/images/gallery, about fifteen minutes
    python examples/gallery.py --work gallery --from 7

The commands run in a temporary folder, or in that of --work, on this machine and with short budgets, and are printed
with their numbers before they run. The energy of GPUs is left out: its files are not part of this project.
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
    parser.add_argument("--work", type=Path, help="folder of what the commands write (default: a temporary one)")
    parser.add_argument("--from", type=int, default=1, dest="first", help="number of the first command (default: 1)")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        work = (options.work or Path(temporary)).resolve()
        work.mkdir(parents=True, exist_ok=True)
        if not (work / "others.json").is_file():
            measure_others(work / "others.json")
        shutil.copy(NETWORK, work / "net.py")
        for number, command in enumerate(commands(), 1):
            if number >= options.first:
                print(f"{number} $ {shlex.join(command)}", flush=True)
                subprocess.run(program_of(command), check=True, cwd=work, stdout=subprocess.DEVNULL)
        for picture in sorted(path for path in work.rglob("*") if path.suffix in (".png", ".svg")):
            shutil.copy(picture, options.out)
            print(f"Wrote {options.out / picture.name}")


def commands() -> list[list[str]]:
    """Return the commands of the gallery."""
    text = (DOCS / "gallery.rst").read_text(encoding="utf-8")
    lines = [shlex.split(line) for line in re.findall(r"^   \$ (.+)$", text, re.MULTILINE)]
    return [line for line in lines if line[1] != "examples/gpu_operator_energy.py"]


def program_of(command: list[str]) -> list[str]:
    """Return what runs a command with this Python, in any folder."""
    if command[0] == "nni-latency":
        return [sys.executable, "-m", "nni_latency", *command[1:]]
    return [sys.executable, str(DOCS.parent / command[1]), *command[2:]]


def measure_others(path: Path) -> None:
    """Measure blocks that the micro-benchmarks do not have."""
    print(f"Measuring {N_BLOCKS} random blocks, to try the fit on", flush=True)
    series = [(block, (1,)) for block in draw_blocks(N_BLOCKS)]
    run_benchmarks(TorchEager(), Protocol(n_warmup=0, time_budget=BUDGET), path, series=series)


if __name__ == "__main__":
    main()
