# SPDX-License-Identifier: Apache-2.0
from ._farm import farm_command

__all__ = [
    "farm_command",
]
