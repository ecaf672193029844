# SPDX-License-Identifier: Apache-2.0
"""A script, not a test: a local experiment of NNI with one trial in a separate process.

``python local_experiment.py TABLE FOLDER PORT`` prints what NNI's web page receives, as JSON.
"""

from __future__ import annotations

import functools
import json
import sys
import time
import urllib.request

from nni_latency import FBNetSpace
from nni_latency.imports import quiet_nni
from nni_latency.nas import CostReporting, LatencyFilter, LatencyProfiler

with quiet_nni():
    import nni
    from nni.experiment import launcher
    from nni.nas.evaluator import FunctionalEvaluator
    from nni.nas.experiment import NasExperiment
    from nni.nas.strategy import Random
    from nni.nas.strategy.middleware import Chain, Filter

SHAPE = (1, 3, 32, 32)
TRIALS = 1


class Tiny(FBNetSpace):
    """A space that a trial makes in a blink."""

    def __init__(self):
        super().__init__(num_classes=2, input_size=32, width=0.25, depth=0.25, head_channels=16)


def judge(model, accuracy):
    """Report an accuracy, as an evaluator that knows of no cost does."""
    assert not hasattr(nni.get_current_parameter(), "cost")
    nni.report_final_result(accuracy)


def metrics(port):
    """Return by trial what it reported last, as NNI's web page gets it."""
    with urllib.request.urlopen(f"http://localhost:{port}/api/v1/nni/metric-data", timeout=60) as answer:
        records = json.load(answer)
    # NNI sends what a trial reported as a string of JSON within a string of JSON.
    return {item["parameterId"]: json.loads(json.loads(item["data"])) for item in records if item["type"] == "FINAL"}


def main(table, folder, port):
    """Run the experiment until the trial has reported; print what arrived and what was expected."""
    space = Tiny()
    profiler = LatencyProfiler(space, latency_estimator=table)
    low, high = profiler.cost.range
    strategy = Chain(Random(seed=0), Filter(LatencyFilter(profiler, max=(low + high) / 2)))
    evaluator = CostReporting(FunctionalEvaluator(judge, accuracy=0.75), table, SHAPE)
    experiment = NasExperiment(space, evaluator, strategy)
    experiment.config.experiment_working_directory = folder
    experiment.config.max_trial_number = experiment.config.trial_concurrency = TRIALS
    # NNI waits three seconds for its manager to listen, which a busy machine does not start in that time.
    launcher._check_rest_server = functools.partial(launcher._check_rest_server, retry=60)
    try:
        experiment.start(port)
        end = time.monotonic() + 600
        while len(metrics(port)) < TRIALS and time.monotonic() < end:
            time.sleep(0.5)
        samples = {
            str(job.hyperParameters[0].parameter_id): job.hyperParameters[0].parameters["sample"]
            for job in experiment.list_trial_jobs()
        }
        expected = {key: 1e3 * profiler.profile(sample) for key, sample in samples.items()}
        result = {"reported": metrics(port), "expected": expected, "range": [low, high]}
        sys.stdout.write(f"RESULT {json.dumps(result)}\n")
    finally:
        experiment.stop()


if __name__ == "__main__":
    # Under its own name, so that trials find what the evaluator needs by import.
    from local_experiment import main as run

    run(sys.argv[1], sys.argv[2], int(sys.argv[3]))
