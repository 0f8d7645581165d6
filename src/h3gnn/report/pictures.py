"""What the static pictures share: one look, and files that are written whole or not at all."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np

from h3gnn.errors import InputError
from h3gnn.storage.files import write_atomically

ENDINGS = (".png", ".pdf", ".svg")

COLOURS = (
    "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#F0E442", "#999999",
    "#332288", "#882255", "#117733", "#DDCC77", "#44AA99", "#CC6677", "#999933", "#AA4499",
)  # fmt: skip
"""Okabe and Ito's palette, which colour-blind readers can tell apart, then Tol's muted one."""

INK, SOFT, LINE = "#222222", "#666666", "#cccccc"


def new_figure(width: float, height: float) -> Any:
    """Return an empty figure that belongs to no window; sizes are inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save_figure(figure: Any, path: Path) -> None:
    """Write a figure as PNG (300 dots per inch), PDF or SVG, text as text."""
    import matplotlib as mpl

    if path.suffix.lower() not in ENDINGS:
        raise InputError(f"{path}: a picture ends in .png, .svg or .pdf")
    buffer = io.BytesIO()
    with mpl.rc_context({"svg.fonttype": "none", "pdf.fonttype": 42, "svg.hashsalt": "h3gnn"}):
        figure.savefig(buffer, format=path.suffix.lower().lstrip("."), dpi=300, bbox_inches="tight")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, buffer.getvalue())
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror or error}") from None


def plain(axes: Any, title: str = "", x: str = "", y: str = "") -> None:
    """Give axes their words and take off what says nothing."""
    axes.set_title(title, loc="left", fontsize=10, color=INK)
    axes.set_xlabel(x, fontsize=9, color=INK)
    axes.set_ylabel(y, fontsize=9, color=INK)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(SOFT)
    axes.tick_params(labelsize=8, colors=INK)


def frame(axes: Any, title: str, **font: Any) -> None:
    """Give a map its title and its square, without numbers: places mean nothing by themselves."""
    axes.set_title(title, color=INK, **font)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_box_aspect(1)
    for side in axes.spines.values():
        side.set_color(LINE)


def shorten(name: str, most: int = 24) -> str:
    """Return a name that fits on an axis."""
    return name if len(name) <= most else f"{name[: most - 1]}…"


def known_range(values: Any) -> tuple[float, float]:
    """Return the 1st and the 99th percentile of what is known, which a few far values do not move."""
    low, high = np.nanpercentile(values, [1, 99]) if np.isfinite(values).any() else (0.0, 1.0)
    return float(low), float(high if high > low else low + 1)
