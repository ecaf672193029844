"""The names of FBNet's candidates in other projects: ``ir_k3_s2`` there is ``k3_e1_g2`` here."""

from __future__ import annotations

import re

_OURS = re.compile(r"k(?P<kernel>\d+)_e(?P<expansion>\d+)(?:_g(?P<groups>\d+))?")
_THEIRS = re.compile(r"ir_k(?P<kernel>\d+)_(?P<kind>[es])(?P<number>\d+)")


def own_name(name: str) -> str:
    """Return our name of a candidate; a name that is no one's stays as it is.

    Their ``s`` counts the groups of a block that does not widen.

    Examples
    --------
    >>> own_name("ir_k5_e6"), own_name("ir_k3_s2"), own_name("skip")
    ('k5_e6', 'k3_e1_g2', 'skip')
    """
    match = _THEIRS.fullmatch(name)
    if match is None:
        return name
    number = match["number"]
    return f"k{match['kernel']}_e{number}" if match["kind"] == "e" else f"k{match['kernel']}_e1_g{number}"


def foreign_name(name: str) -> str:
    """Return their name of a candidate; one that they have no name for stays as it is.

    Examples
    --------
    >>> foreign_name("k5_e6"), foreign_name("k3_e1_g2"), foreign_name("k3_e3_g2")
    ('ir_k5_e6', 'ir_k3_s2', 'k3_e3_g2')
    """
    match = _OURS.fullmatch(name)
    if match is None:
        return name
    if match["groups"] is None:
        return f"ir_k{match['kernel']}_e{match['expansion']}"
    return f"ir_k{match['kernel']}_s{match['groups']}" if match["expansion"] == "1" else name
