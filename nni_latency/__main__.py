# SPDX-License-Identifier: Apache-2.0
"""``python -m nni_latency`` is the same as ``nni-latency``."""

from nni_latency.cli import run

# Processes that measure import this module under another name.
if __name__ == "__main__":
    run()
