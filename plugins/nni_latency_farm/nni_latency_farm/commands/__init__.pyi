from ._farm import farm_command

__all__ = [
    "farm_command",
]
