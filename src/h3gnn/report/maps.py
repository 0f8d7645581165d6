"""Pictures of embeddings: maps side by side, coloured by a group or a measure."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from h3gnn.findings import Category, Floats, Measure
from h3gnn.report.pictures import COLOURS, INK, LINE, known_range, new_figure, save_figure, shorten

UNKNOWN = "#d0d0d0"


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
        drawn = _draw_nodes(axis, np.asarray(places), colour)
        axis.set_title(title, color=INK)
        axis.set_xticks([])
        axis.set_yticks([])
        axis.set_box_aspect(1)
        axis.set_aspect("equal", adjustable="datalim")
        for side in axis.spines.values():
            side.set_color(LINE)
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


def _draw_nodes(axis: Any, places: Floats, colour: Category | Measure | None) -> Any:
    look = {
        "s": float(np.clip(15_000 / len(places), 1.0, 30.0)),
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
