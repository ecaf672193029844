"""``python -m nni_latency`` is the same as ``nni-latency``."""

from nni_latency.cli import main

main()
