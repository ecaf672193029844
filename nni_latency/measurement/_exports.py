# SPDX-License-Identifier: Apache-2.0
"""Exported ONNX networks, which the worker processes of a campaign share because exporting is slow."""

from __future__ import annotations

import hashlib
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nni_latency.operators import OnnxNetwork

#: Disk space for the networks of a campaign [byte]; further ones are exported in every process.
_MOST = 2**30

#: Header of a file [byte]: checksum, number of the network's parts, and whether these are joined networks.
_CHECKSUM, _LABELS, _JOINED = 4, 4, 1


@dataclass(frozen=True)
class Export:
    """The file of the exported network of one subject. Immutable."""

    path: Path

    @classmethod
    def of(cls, folder: Path, packed: bytes) -> Export:
        """Return the file of a subject that `pack_subject` packed, in the folder of a campaign."""
        return cls(folder / hashlib.sha256(packed).hexdigest())

    def find(self) -> OnnxNetwork | None:
        """Return the network; None if the file is absent or damaged."""
        import onnx

        from nni_latency.operators import OnnxNetwork

        try:
            content = self.path.read_bytes()
        except OSError:
            return None
        body = memoryview(content)[_CHECKSUM:]
        if not body or zlib.crc32(body) != int.from_bytes(content[:_CHECKSUM], "little"):
            return None
        model = onnx.ModelProto.FromString(bytes(body[_LABELS + _JOINED :]))
        return OnnxNetwork(model, int.from_bytes(body[:_LABELS], "little"), is_joined=bool(body[_LABELS]))

    def keep(self, stage: Any) -> None:
        """Write the network of a prepared subject if it was exported to ONNX, and there is room."""
        from nni_latency.operators import OnnxNetwork

        network = getattr(stage, "network", None)
        if not isinstance(network, OnnxNetwork) or not getattr(stage, "was_exported", False):
            return
        try:
            # Free the space of a damaged file of the same network.
            self.path.unlink(missing_ok=True)
            room = _MOST - sum(file.stat().st_size for file in self.path.parent.iterdir())
            if network.model.ByteSize() > room:
                return
            part = self.path.with_suffix(".part")
            head = network.n_labels.to_bytes(_LABELS, "little") + bytes([network.is_joined])
            body = network.model.SerializeToString()
            checksum = zlib.crc32(body, zlib.crc32(head)).to_bytes(_CHECKSUM, "little")
            with part.open("wb") as file:
                file.writelines((checksum, head, body))
            part.replace(self.path)
        except (OSError, ValueError):
            # The disk is full, or the network is too large for protobuf: every process exports it.
            return
