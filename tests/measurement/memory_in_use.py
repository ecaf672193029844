# SPDX-License-Identifier: Apache-2.0
"""How much memory the process has asked for and not given back, whether or not the C library keeps it."""

from __future__ import annotations

import ctypes
import gc


class _Info(ctypes.Structure):
    """The struct mallinfo2 of glibc."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


def memory_in_use():
    """Return the bytes that malloc has handed out, in all arenas and in separate maps."""
    gc.collect()
    ask = ctypes.CDLL(None).mallinfo2
    ask.restype = _Info
    info = ask()
    return info.uordblks + info.hblkhd
