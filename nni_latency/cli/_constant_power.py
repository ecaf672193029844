"""What a predicted energy is held to: the predicted time, times a constant power."""

from __future__ import annotations

import nni_latency.energy as energy
import nni_latency.estimators as estimators
from nni_latency.units import format_metric

#: What JSON and CSV call it.
CONSTANT = "at_constant_power"


def constant_power_content(estimate: estimators.Estimate) -> dict[str, float]:
    """Return what a predicted energy would be by the time alone [J]; nothing of other costs."""
    return {CONSTANT: estimate.at_constant_power} if isinstance(estimate, energy.EnergyEstimate) else {}


def at_constant_power(total: estimators.Estimate | None, estimator: estimators.Estimator) -> list[str]:
    """Say what the energy of a network would be by the time alone; nothing of other costs."""
    if not (isinstance(total, energy.EnergyEstimate) and isinstance(estimator, energy.PortableEstimator)):
        return []
    joules, watts = (
        format_metric(number, metric)
        for number, metric in ((total.at_constant_power, "energy"), (estimator.constant_power, "power"))
    )
    return [f"At a constant power of {watts} it would be {joules}, by the predicted time alone."]
