# SPDX-License-Identifier: Apache-2.0
"""Networks in ONNX that the worker processes of a campaign keep for each other, as exporting takes long."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nni_latency.operators import OnnxNetwork

#: What the networks of a campaign may take on the disk [byte]; those beyond are exported in every process.
_MOST = 2**30

#: What stands before a network: the number of its parts, and whether they are joined networks.
_LABELS, _JOINED = 4, 1


@dataclass(frozen=True)
class Exports:
    """Networks that were exported, by the bytes of the subjects that they are made of.

    Parameters
    ----------
    folder : Path
        Where they are; whoever made it removes it.
    """

    folder: Path

    def find(self, packed: bytes) -> OnnxNetwork | None:
        """Return the network of a subject of which `pack_subject` made bytes, or None if none was kept."""
        import onnx

        from nni_latency.operators import OnnxNetwork

        try:
            content = self._path(packed).read_bytes()
        except OSError:
            return None
        labels, joined = content[:_LABELS], content[_LABELS : _LABELS + _JOINED]
        model = onnx.ModelProto.FromString(content[_LABELS + _JOINED :])
        return OnnxNetwork(model, int.from_bytes(labels, "little"), is_joined=joined != b"\0")

    def keep(self, packed: bytes, stage: Any) -> None:
        """Keep the network of a subject, if what was prepared of it was exported to ONNX and there is room."""
        from nni_latency.operators import OnnxNetwork

        network, path = getattr(stage, "network", None), self._path(packed)
        if not isinstance(network, OnnxNetwork) or not getattr(stage, "was_exported", False):
            return
        try:
            room = _MOST - sum(file.stat().st_size for file in self.folder.iterdir())
            if network.model.ByteSize() > room:
                return
            part = path.with_suffix(".part")
            head = network.n_labels.to_bytes(_LABELS, "little") + bytes([network.is_joined])
            part.write_bytes(head + network.model.SerializeToString())
            part.replace(path)
        except (OSError, ValueError):
            # A full disk, or more than protobuf can hold: then every process exports it.
            return

    def _path(self, packed: bytes) -> Path:
        return self.folder / hashlib.sha256(packed).hexdigest()
