"""Text of files, as a terminal may show it."""

from __future__ import annotations

#: Control characters, which could clear the screen or write elsewhere, and those that change the direction of text.
_UNPRINTABLE = dict.fromkeys(
    (
        *(code for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"),
        *range(0x202A, 0x202F),
        *range(0x2066, 0x206A),
        # Halves of characters, which JSON and names of files can hold and no terminal takes.
        *range(0xD800, 0xE000),
    ),
    "\ufffd",
)


def printable(text: str) -> str:
    """Return a text with a replacement character for everything that would control the terminal.

    Examples
    --------
    >>> printable("a" + chr(27) + "[2J") == "a" + chr(0xFFFD) + "[2J"
    True
    """
    return text.translate(_UNPRINTABLE)
