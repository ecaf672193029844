"""Reading a saved estimator: the file's 'format' says what it is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

# Named through its room, so that reading a table loads no predictor.
import nni_latency.estimators as estimators
from nni_latency.documents import format_of
from nni_latency.estimators._base import Estimator
from nni_latency.tables import LookupTable, OperatorTable, read_table

#: What reads a file by its 'format': a new kind is one line here. Anything else is taken for a table.
READERS: dict[str, Callable[[Path], Estimator]] = {
    "nni_latency.acts": lambda path: estimators.ActsEstimator.load(path),
    "nni_latency.transfer": lambda path: estimators.TransferEstimator.load(path),
}


def read_estimator(path: str | Path, *, missing: estimators.Missing = "error") -> Estimator:
    """Read a table or predictor from its file.

    Parameters
    ----------
    path : str or Path
        The file.
    missing : {"error", "nearest"}, default="error"
        What a table does about candidates without an entry. One of operators predicts them; with "nearest", those of
        a kind that it does not have have the cost of the operator that is most alike.

    Raises
    ------
    FileFormatError
        If the file is absent, truncated, altered, of another kind or of a newer version.
    """
    found = read_saved(path)
    return found if isinstance(found, Estimator) else table_estimator(found, missing=missing)


def read_saved(path: str | Path) -> LookupTable | OperatorTable | Estimator:
    """Read a table, or a predictor, from its file.

    Raises
    ------
    FileFormatError
        If the file is absent, truncated, altered, of another kind or of a newer version.
    """
    reader = READERS.get(format_of(path))
    return read_table(path) if reader is None else reader(Path(path))


def table_estimator(
    table: LookupTable | OperatorTable, *, missing: estimators.Missing = "error"
) -> estimators.TableEstimator | estimators.OperatorTableEstimator:
    """Return a table of either kind as an estimator; one of operators predicts them rather than raise."""
    if isinstance(table, LookupTable):
        return estimators.TableEstimator(table, missing=missing)
    return estimators.OperatorTableEstimator(table, missing="nearest" if missing == "nearest" else "predict")
