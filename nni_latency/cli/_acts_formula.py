"""What ``learn device`` and ``show`` say of a fit: its formula in lines."""

from __future__ import annotations

import nni_latency.estimators.acts as acts
from nni_latency.units import format_percent, format_seconds

#: How the terms of the formula are written.
_TERMS = {"acts": "ACTS", "inp": "INP", "flops": "FLOPs", "constant": "constant"}


def acts_formula(estimator: acts.ActsEstimator) -> list[str]:
    """Say in lines what was fitted."""
    lines = [
        f"latency = {estimator.a_:.4g} s x ACTS + {estimator.b_:.4g} s x INP + {estimator.c_:.4g} s x FLOPs "
        f"+ {format_seconds(estimator.d_)}   (two FLOPs per multiply-add)"
    ]
    if estimator.breakpoint_:
        sign = "-" if estimator.offset_ < 0 else "+"
        lines.append(
            f"below {format_seconds(estimator.breakpoint_)}: {estimator.slope_:.4g} times that {sign} "
            f"{format_seconds(abs(estimator.offset_))}"
        )
    shares = ", ".join(f"{_TERMS[name]} {format_percent(share)}" for name, share in estimator.shares_.items())
    lines.append(f"The device is bound by {estimator.bound_}: {shares} of the latency on average.")
    if estimator.variant == "refined":
        what = {
            "none": "no correction of the efficiencies by operator group",
            "curve": "a monotone curve on the costs of operators",
            "residual": "factors by operator, learned from the residuals",
        }
        lines.append(f"Chosen by cross-validation: {what[estimator.correction_]}.")
    return lines
