"""`HeldOutOperator`: what was measured of an operator, and what a model said of it that had not seen it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class HeldOutOperator:
    """An operator that was measured, and what a model said of it that had not seen it. Immutable.

    Parameters
    ----------
    device : str
        Where it was measured.
    group : str
        Group of operators that it belongs to.
    seconds, watts : float
        Measured time [s] and power [W].
    predicted_seconds, predicted_watts : float
        Predicted time [s] and power [W].
    constant_power : float
        The most common power of what the model had seen [W].
    whole_device : bool, default=False
        Whether the model had seen nothing of the device.

    Examples
    --------
    >>> item = HeldOutOperator("a30", "activation", 0.002, 100.0, 0.001, 110.0, 150.0)
    >>> round(item.joules, 6), round(item.predicted_joules, 6), round(item.constant_joules, 6)
    (0.2, 0.11, 0.15)
    """

    device: str
    group: str
    seconds: float
    watts: float
    predicted_seconds: float
    predicted_watts: float
    constant_power: float
    whole_device: bool = False

    @property
    def joules(self) -> float:
        """Measured energy [J]."""
        return self.seconds * self.watts

    @property
    def predicted_joules(self) -> float:
        """Predicted energy [J]: power times time."""
        return self.predicted_seconds * self.predicted_watts

    @property
    def constant_joules(self) -> float:
        """The predicted time, times the constant power [J]."""
        return self.predicted_seconds * self.constant_power
