"""Reading a saved estimator: the file's 'format' says what it is."""

from __future__ import annotations

from pathlib import Path

from nni_latency.estimators._base import Estimator
from nni_latency.estimators._table import Missing, TableEstimator
from nni_latency.tables import LookupTable


def read_estimator(path: str | Path, *, missing: Missing = "error") -> Estimator:
    """Read a table or predictor from its file.

    Parameters
    ----------
    path : str or Path
        The file.
    missing : {"error", "nearest"}, default="error"
        What a table does about candidates without an entry.

    Raises
    ------
    TableFormatError
        If the file is absent, truncated, altered, of another kind or of a newer version.
    """
    return TableEstimator(LookupTable.load(path), missing=missing)
