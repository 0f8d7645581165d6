"""The style of all figures, how they are saved, and maps of nodes."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from h3gnn.errors import InputError
from h3gnn.report.findings import Category, Floats, Measure
from h3gnn.storage.atomic import write_atomically

ENDINGS = (".png", ".pdf", ".svg")

COLOURS = (
    "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#F0E442", "#999999",
    "#332288", "#882255", "#117733", "#DDCC77", "#44AA99", "#CC6677", "#999933", "#AA4499",
)  # fmt: skip
"""Okabe and Ito's palette, which colour-blind readers can tell apart, then Tol's muted one."""

INK, SOFT, LINE = "#222222", "#666666", "#cccccc"
UNKNOWN = "#d0d0d0"
INK_OF_A_MAP = 15_000.0


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
    undated = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(path.suffix.lower())
    with mpl.rc_context({"svg.fonttype": "none", "pdf.fonttype": 42, "svg.hashsalt": "h3gnn"}):
        ending = path.suffix.lower().lstrip(".")
        figure.savefig(buffer, format=ending, dpi=300, bbox_inches="tight", metadata=undated)
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


def draw_maps(path: Path, maps: Mapping[str, Floats], colour: Category | Measure | None) -> None:
    """Draw maps side by side in a PNG, PDF or SVG.

    Args:
        path: the file.
        maps: places of the nodes by title, each `[nodes, 2]`.
        colour: what the nodes are coloured by.
    """
    figure = new_figure(5.2 * len(maps), 5.6)
    axes = figure.subplots(1, len(maps), squeeze=False)[0]
    for axis, (title, places) in zip(axes, maps.items(), strict=True):
        drawn = draw_nodes(axis, np.asarray(places), colour)
        frame(axis, title)
        axis.set_aspect("equal", adjustable="datalim")
    if isinstance(colour, Measure):
        bar = figure.colorbar(drawn, ax=axes, location="bottom", fraction=0.04, aspect=50, pad=0.02)
        bar.set_label(colour.title, fontsize=9)
        bar.ax.tick_params(labelsize=8)
        bar.outline.set_visible(False)
    elif isinstance(colour, Category):
        handles, names = axes[0].get_legend_handles_labels()
        key = figure.legend(handles, names, loc="outside lower center", ncols=4, frameon=False, fontsize=9)
        for handle in key.legend_handles:
            handle.set_sizes([36])
    save_figure(figure, path)


def draw_nodes(
    axis: Any, places: Floats, colour: Category | Measure | None, ink: float = INK_OF_A_MAP
) -> Any:
    """Draw one map, and return what a colour bar needs where it is coloured by a measure.

    Args:
        axis: where to draw.
        places: `[nodes, 2]`.
        colour: what the nodes are coloured by.
        ink: what all points cover together, so that few are large and many are small.
    """
    look = {
        "s": float(np.clip(ink / len(places), 1.0, ink / 500)),
        "linewidths": 0,
        "rasterized": len(places) > 5_000,
    }
    if colour is None:
        return axis.scatter(*places.T, color=COLOURS[0], **look)
    if isinstance(colour, Measure):
        low, high = known_range(colour.values)
        known = np.isfinite(colour.values)
        axis.scatter(*places[~known].T, color=UNKNOWN, **look)
        values = colour.values[known]
        return axis.scatter(*places[known].T, c=values, vmin=low, vmax=high, cmap="viridis", **look)
    unknown = colour.values < 0
    if unknown.any():
        axis.scatter(*places[unknown].T, color=UNKNOWN, label="unknown", **look)
    for value, name in enumerate(colour.names):
        chosen = colour.values == value
        if chosen.any():
            shade = COLOURS[value % len(COLOURS)]
            axis.scatter(*places[chosen].T, color=shade, label=shorten(name, 40), alpha=0.85, **look)
    return None
