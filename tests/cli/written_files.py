# SPDX-License-Identifier: Apache-2.0
"""A file of every kind that the package writes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import torch
from measured_graphs import fitted
from torch import nn

import nni_latency
from nni_latency.cli._search_document import SEARCH
from nni_latency.energy import DeviceFacts, MeasuredOperator, PortableModel, cross_validate
from nni_latency.fusion import save_rules
from nni_latency.kernels import Kernel, KernelPredictor, KernelPredictors, MeasuredKernel, shipped_prior
from nni_latency.measurement import MemoryStore
from nni_latency.operators import FusionRule, FusionRules, FusionTimes, OpSpec
from nni_latency.platforms import Platform
from nni_latency.profiling import PROFILE_PROTOCOL, own_model, profile_operators
from nni_latency.testing import FakeMeter, FakeRuntime

DATA = Path(__file__).parents[1] / "tables" / "data"

#: What lies in a file of the tests, with something that a person looks for in it.
KEPT = {
    "nni_latency.lookup_table": ("lookup_table_1.json", "latency [us]"),
    "nni_latency.validation": ("validation_1.json", "within 10 %"),
    "nni_latency.benchmark_points": ("benchmark_points_1.json", "batch sizes"),
    "nni_latency.acts": ("acts_1_refined.json", "latency = "),
    "nni_latency.transfer": ("transfer_1.json", "TransferEstimator(device 0"),
}


def _write_energy(path):
    ops = [MeasuredOperator(OpSpec.of("relu", [(1, 2**power)]), 1e-6 + 2**power * 1e-9, 1e-4) for power in range(8, 20)]
    facts = {"mine": DeviceFacts(1e12, 8e9, 100.0, 20.0, 1e-6)}
    model = PortableModel(n_trees=3).fit({"mine": ops}, facts)
    model.bounds_ = {"latency": 0.05, "energy": 0.07}
    model.held_out_ = cross_validate(ops, model=model, name="mine").held_out
    return model.save(path)


def _write_profile(path):
    runtime = FakeRuntime(lambda op: {"linear": 0.004}.get(op.kind, 0.001))
    protocol = replace(PROFILE_PROTOCOL, n_warmup=1, n_run=2, time_budget=1e6, half_width=0.0, processes=1)
    models = [own_model("mine", nn.Sequential(nn.Flatten(), nn.Linear(192, 8)).eval(), torch.zeros(1, 3, 8, 8))]
    how = {"protocol": protocol, "store": MemoryStore(), "timer": lambda: runtime.clock.now}
    return profile_operators(models, runtime, meters=(FakeMeter(runtime.clock),), **how).save(path)


def write_search(path):
    content = {
        **SEARCH.head, "space": "fbnet", "dataset": "digits", "strategy": "fbnet", "estimator": "energy.json",
        "platform": "pi.torch.fp32.t1", "metric": "energy", "unit": "J", "target": 0.05, "predicted": 0.04,
        "measured": 0.042, "measured_at_speed": 0.041, "meets_target": True, "not_measured": None, "accuracy": 0.9,
        "choices": {"layer0": "k3_e1"}, "history": [],
    }  # fmt: skip
    path.write_text(json.dumps(content))
    return path


def _write_kernels(path):
    kernels = [Kernel.of("relu_block", HW=8, CIN=count) for count in range(4, 64, 4)]
    seconds = [1e-8 * kernel["CIN"] for kernel in kernels]
    predictor = KernelPredictor(candidates=("process",)).fit(kernels, seconds)
    measured = [MeasuredKernel(value, value, value, kernel) for kernel, value in zip(kernels, seconds, strict=True)]
    return KernelPredictors(
        predictors={"relu": predictor}, kernels=tuple(measured), platform=Platform("pi", "torch")
    ).save(path)


def _write_rules(path):
    rule = FusionRule(("conv2d", "relu"), True, times=FusionTimes(4e-4, 1e-4, 4e-4, 0.1))
    return save_rules(FusionRules(Platform("cpu", "onnxruntime"), (rule,)), path)


#: What is written anew, with something that a person looks for in it.
WRITTEN = {
    "nni_latency.energy": (_write_energy, "mine"),
    "nni_latency.kernels": (_write_kernels, "relu"),
    "nni_latency.operator_profile": (_write_profile, "linear"),
    "nni_latency.search": (write_search, "40 mJ"),
    "nni_latency.fusion": (_write_rules, "one kernel"),
    "nni_latency.kernel_prior": (lambda path: shipped_prior().save(path), "conv_bn"),
    "nni_latency.graph_predictor": (lambda path: fitted(5).save(path), "device-fast"),
    "nni_latency.networks": (lambda _: Path(nni_latency.__file__).parent / "datasets" / "networks.zip", "families"),
}


def write_files(folder):
    """Return a file of every kind, by its format."""
    kept = {name: DATA / file for name, (file, _) in KEPT.items()}
    return {**kept, **{name: write(folder / name) for name, (write, _) in WRITTEN.items()}}
