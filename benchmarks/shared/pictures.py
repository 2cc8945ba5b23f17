"""What the pictures of benchmarks and notebooks share: colours, panels, and how a notebook shows a figure."""

from __future__ import annotations

from dataclasses import dataclass
from io import BytesIO
from typing import Any

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#000000", "#56B4E9", "#D55E00")
"""The palette of Okabe and Ito 2008, which colour-blind readers can tell apart."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
"""A marker for each colour, for prints in grey."""


def sheet(rows: int = 1, columns: int = 1, *, share: bool = True, width: float = 3.2, height: float = 2.7) -> Any:
    """A figure and its panels, (rows, columns) of a width and height in inches."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(1.5 + width * columns, 0.9 + height * rows), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, sharey="row" if share else False)


@dataclass(frozen=True)
class Shown:
    """A figure as the last value of a notebook's cell."""

    figure: Any

    def _repr_png_(self) -> bytes:
        buffer = BytesIO()
        self.figure.savefig(buffer, format="png", dpi=100)
        return buffer.getvalue()
