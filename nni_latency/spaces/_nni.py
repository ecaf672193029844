"""The names of NNI that the spaces are built of, imported without its warnings about newer versions of torch."""

from __future__ import annotations

import warnings

with warnings.catch_warnings():
    # NNI wraps every class of torch.nn; these classes came after it and are no modules, which it reports.
    warnings.filterwarnings("ignore", message=r".*is found to be not a nn\.Module, which is unexpected.*")
    from nni.nas.nn.pytorch import LayerChoice, ModelSpace

__all__ = ["LayerChoice", "ModelSpace"]
