# SPDX-License-Identifier: Apache-2.0
"""What holds of everything that the commands print on a narrow screen."""

from __future__ import annotations

from rich.cells import cell_len
from rich.console import Console

from nni_latency.cli._report import fits, table_of

#: Widths of screens [letters].
WIDTHS = (80, 100)

#: What the names of a table are made longer by.
_LONG = ".features_of_a_network_with_a_long_name.convolution(kernel_size=3)"


def check_narrow(grid):
    """Fail unless a grid is one table of rows and columns on every screen, whatever its names."""
    for width in WIDTHS:
        shown = grid.beside(width)
        headers, *rows = shown.cells()
        names = [
            [cell + _LONG if cell and is_text else cell for cell, is_text in zip(row, shown.texts, strict=True)]
            for row in rows
        ]
        for cells in ([headers, *rows], [headers, *names]):
            assert fits(cells, shown.texts, width), (grid.title, headers, width)
            check_lines(printed(table_of(cells, shown.texts, grid.title, width), width), width)


def check_lines(text, width):
    """Fail if a line is longer than the screen is wide, unless it is one word, as paths are."""
    too_long = [line for line in text.splitlines() if cell_len(line) > width and " " in line.strip()]
    assert not too_long, too_long


def printed(table, width):
    """Return a table as a screen shows it."""
    console = Console(width=width, color_system=None)
    with console.capture() as capture:
        console.print(table)
    return capture.get()
