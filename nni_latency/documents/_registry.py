"""The one list of all kinds of files: what loads each of them."""

from __future__ import annotations

import os
import pkgutil
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from nni_latency.documents._saved_file import SavedFile
from nni_latency.files import naming, readable

#: What loads a kind of file, by the format that the file says it has, as ``module:name``: it is imported when a file of
#: the kind is loaded, so that loading a table imports no predictor. A file that says nothing is taken for the first.
KINDS: Mapping[str, str] = MappingProxyType(
    {
        "nni_latency.lookup_table": "nni_latency.tables:LookupTable.load",
        "nni_latency.acts": "nni_latency.estimators:ActsEstimator.load",
        "nni_latency.transfer": "nni_latency.estimators:TransferEstimator.load",
        "nni_latency.benchmark_points": "nni_latency.micro_benchmarks:BenchmarkPoints.load",
        "nni_latency.fusion": "nni_latency.fusion:read_rules",
        "nni_latency.kernels": "nni_latency.loading:load_kernel_predictors",
        "nni_latency.kernel_prior": "nni_latency.kernels:Prior.load",
        "nni_latency.energy": "nni_latency.energy:PortableModel.load",
        "nni_latency.graph_predictor": "nni_latency.graphs:GraphPredictor.load",
        "nni_latency.networks": "nni_latency.datasets:load_networks",
        "nni_latency.operator_profile": "nni_latency.profiling:OperatorProfile.load",
        "nni_latency.validation": "nni_latency.validation:read_validation",
        "nni_latency.search": "nni_latency.cli:read_search",
    }
)


def load(path: str | os.PathLike[str], kinds: Sequence[str] = tuple(KINDS)) -> Any:
    """Load a file of this package, whatever its kind. It is read once.

    Parameters
    ----------
    path : str or path
        The file, or a `SavedFile`.
    kinds : sequence of str, optional
        Kinds that it may be of; by default all of `KINDS`. Of any other file is said that it is none of the first kind.

    Returns
    -------
    object
        What its kind is loaded as: a table, an estimator, a predictor, a data set, a profile, a validation ...

    Raises
    ------
    FileFormatError
        If the file is absent, truncated, altered, of another kind or of another version.

    Examples
    --------
    >>> from nni_latency.tables import shipped_tables
    >>> type(load(next(iter(shipped_tables().values())))).__name__
    'LookupTable'
    """
    file = SavedFile.of(path)
    loader = pkgutil.resolve_name(KINDS[file.kind if file.kind in kinds else kinds[0]])
    with naming(file.path), readable(file.path, "a file of nni_latency"):
        return loader(file)
