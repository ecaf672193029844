"""Reading a saved estimator: the file's 'format' says what it is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from nni_latency.documents import format_of
from nni_latency.estimators._base import Estimator
from nni_latency.estimators._operator_table import OperatorTableEstimator
from nni_latency.estimators._table import Missing, TableEstimator
from nni_latency.estimators._transfer import TransferEstimator
from nni_latency.estimators.acts import ActsEstimator
from nni_latency.tables import LookupTable, OperatorTable

#: What reads a file by its 'format'; anything else is taken for a table, which says what is wrong with it.
READERS: dict[str, Callable[[Path], Estimator]] = {
    "nni_latency.acts": ActsEstimator.load,
    "nni_latency.transfer": TransferEstimator.load,
    "nni_latency.operator_table": lambda path: OperatorTableEstimator(OperatorTable.load(path)),
}


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
    FileFormatError
        If the file is absent, truncated, altered, of another kind or of a newer version.
    """
    reader = READERS.get(format_of(path))
    return TableEstimator(LookupTable.load(path), missing=missing) if reader is None else reader(Path(path))
