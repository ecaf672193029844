# SPDX-License-Identifier: Apache-2.0
"""The names of NNI that the spaces are built of."""

from __future__ import annotations

from nni_latency.imports import quiet_nni

with quiet_nni():
    from nni import __version__ as nni_version
    from nni.mutable import LabeledMutable, Mutable, SampleValidationError, label_scope
    from nni.nas.hub.pytorch.modules.nasbench101 import NasBench101Cell
    from nni.nas.hub.pytorch.nasnet import NDS, CellBuilder
    from nni.nas.nn.pytorch import (
        Cell,
        InputChoice,
        LayerChoice,
        ModelSpace,
        MutableModule,
        ParametrizedModule,
        Repeat,
    )
    from nni.nas.nn.pytorch.base import recursive_freeze
    from nni.nas.nn.pytorch.cell import create_cell_op_candidates, preprocess_cell_inputs
    from nni.nas.nn.pytorch.choice import ChosenInputs
    from nni.nas.space import model_context
