# SPDX-License-Identifier: Apache-2.0
"""`Parametrized`: parameters of an estimator as scikit-learn has them."""

from __future__ import annotations

import inspect
from typing import Any, Self

from nni_latency.errors import InvalidValueError


class Parametrized:
    """Base of an estimator whose ``__init__`` stores its keyword arguments under their names.

    It provides the part of `sklearn.base.BaseEstimator` that `sklearn.base.clone` and callers of estimators need.
    Importing that class takes a second, longer than a prediction.
    """

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters by name.

        Parameters
        ----------
        deep : bool
            Accepted because scikit-learn passes it; no parameter is an estimator itself.
        """
        del deep
        return {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}

    def set_params(self, **params: Any) -> Self:
        """Set parameters by name.

        Raises
        ------
        InvalidValueError
            If a parameter does not exist.
        """
        known = self.get_params()
        for name, value in params.items():
            if name not in known:
                raise InvalidValueError(
                    f"{type(self).__name__} has no parameter {name!r}. Available: {', '.join(known)}."
                )
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        """Name the parameters that differ from their defaults."""
        usual = {name: item.default for name, item in inspect.signature(type(self)).parameters.items()}
        changed = (f"{name}={value!r}" for name, value in self.get_params().items() if value != usual[name])
        return f"{type(self).__name__}({', '.join(changed)})"

    def __sklearn_tags__(self) -> Any:
        """Return the tags that scikit-learn 1.6 and later require of an estimator: the defaults of `BaseEstimator`."""
        from sklearn.base import BaseEstimator

        return BaseEstimator.__sklearn_tags__(self)
