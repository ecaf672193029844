"""Multi-trial strategies of NNI that do not work as they are: `GridSearch` and `TPE`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

from nni_latency.errors import InvalidValueError
from nni_latency.nas import _nni

#: How long to wait where the engine is busy [s].
_PAUSE = 1.0

#: What the tuner is told by index: it has no word for several values at once.
_CHOICES = (_nni.Categorical, _nni.CategoricalMultiple)


class GridSearch(_nni.GridSearch):
    """Try every network of the space, one by one.

    In NNI 3.0 the models of a grid share one sample, which goes on changing: with the model format "raw" each has
    another sample when it is filtered, tried or exported than when it was made, in the end an empty one. Here every
    model keeps a sample of its own. Parameters are those of NNI's `GridSearch`.
    """

    def _grid_generator(self, model_space: Any) -> Iterator[Any]:
        for model in super()._grid_generator(model_space):
            model.sample = deepcopy(model.sample)
            yield model


class TPE(_nni.TPE):
    """Model-based search with a tree-structured Parzen estimator [1]_.

    Three things differ from NNI's `TPE`. It maximises what is reported, as every other strategy of NNI does; NNI's
    minimises it unless told otherwise, and so looks for the worst accuracy. It takes spaces with an `InputChoice`,
    where NNI's raises NotImplementedError. And it does not sleep for a second after every trial, only where no worker
    is free.

    Parameters
    ----------
    optimize_mode : {"maximize", "minimize"}, default="maximize"
        What is good about the reported number.
    **kwargs
        Further parameters of NNI's `TpeTuner`: `seed`, `tpe_args`.

    References
    ----------
    .. [1] J. Bergstra et al., "Algorithms for Hyper-Parameter Optimization", NIPS 2011.
    """

    def __init__(self, *, optimize_mode: str = "maximize", **kwargs: Any) -> None:
        if optimize_mode not in ("maximize", "minimize"):
            raise InvalidValueError(
                f"The 'optimize_mode' of TPE must be 'maximize' or 'minimize'. Got {optimize_mode!r}."
            )
        super().__init__(optimize_mode=optimize_mode, **kwargs)

    def _run(self) -> None:
        space = self.model_space.simplify()
        options = {label: list(mutable.grid()) for label, mutable in space.items() if isinstance(mutable, _CHOICES)}
        with self._thread_lock:
            self.tuner.update_search_space(
                {
                    label: {"_type": "choice", "_value": list(range(len(options[label])))}
                    if label in options
                    else mutable.as_legacy_dict()
                    for label, mutable in space.items()
                }
            )
        while self.engine.budget_available():
            if not self.engine.idle_worker_available():
                time.sleep(_PAUSE)
                continue
            try:
                model = self._next_model(options)
            except _nni.NoMoreTrialError:
                break
            self.engine.submit_models(model)

    def _next_model(self, options: dict[str, list[Any]]) -> Any:
        """Ask the tuner for a network, and remember under which number it did."""
        with self._thread_lock:
            found = self.tuner.generate_parameters(self._model_count)
            sample = {label: options[label][value] if label in options else value for label, value in found.items()}
            model = self.model_space.freeze(sample)
            self._model_to_id[model] = self._model_count
            self._model_count += 1
        return model
