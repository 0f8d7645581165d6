"""Figures of the experiments: maps before and after, a radar, and curves of convergence."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from h3gnn.report.findings import Category
from h3gnn.report.graphics import draw_nodes
from h3gnn.report.pictures import COLOURS, LINE, frame, new_figure, plain, save_figure

Rows = Sequence[Mapping[str, Any]]
SIDES = {"before": "features", "after": "embedding"}


def draw_maps_before_and_after(rows: Rows) -> Any:
    """Draw each graph's two maps, the features above and the embedding below."""
    figure = new_figure(2.3 * len(rows), 4.9)
    axes = figure.subplots(2, len(rows), squeeze=False)
    for column, row in enumerate(rows):
        classes = Category("class", "class", tuple(row["classes"]), np.array(row["labels"]))
        for axis, (which, title) in zip(axes[:, column], SIDES.items(), strict=True):
            draw_nodes(axis, np.array(row[which]).T, classes, ink=3_000)
            frame(axis, f"{row['graph']}: {title}", fontsize=9)
    return figure


def draw_radar(rows: Rows) -> Any:
    """Draw one axis for each graph and one polygon for each method; the paper's are dashed."""
    graphs = list(dict.fromkeys(row["graph"] for row in rows))
    values = {(row["method"], row["graph"]): row["percent"] for row in rows}
    methods = [
        method
        for method in dict.fromkeys(row["method"] for row in rows)
        if all((method, graph) in values for graph in graphs)
    ]
    figure = new_figure(7.0, 5.2)
    axis = figure.add_subplot(projection="polar")
    angles = np.linspace(0, 2 * np.pi, len(graphs), endpoint=False)
    low, high = (np.array([end(values[m, g] for m in methods) for g in graphs]) for end in (min, max))
    low = low - 5
    for place, method in enumerate(methods):
        own = (np.array([values[method, graph] for graph in graphs]) - low) / (high - low)
        style = "--" if method.endswith("(paper)") else "-"
        closed = [*range(len(graphs)), 0]
        axis.plot(
            angles[closed], own[closed], style, color=COLOURS[place % len(COLOURS)], lw=1.8, label=method
        )
    axis.set_xticks(angles, [f"{graph}\n{top:.1f}" for graph, top in zip(graphs, high, strict=True)])
    axis.set_yticks([])
    axis.set_ylim(0, 1.03)
    axis.spines["polar"].set_color(LINE)
    figure.legend(loc="outside right upper", frameon=False, fontsize=8)
    return figure


def draw_curves(rows: Rows) -> Any:
    """Draw accuracy on validation nodes against epochs (above) and seconds (below), a column per graph."""
    graphs = list(dict.fromkeys(row["graph"] for row in rows))
    methods = list(dict.fromkeys(row["method"] for row in rows))
    figure = new_figure(2.6 * len(graphs), 4.8)
    axes = figure.subplots(2, len(graphs), squeeze=False)
    for row in rows:
        column, colour = graphs.index(row["graph"]), COLOURS[methods.index(row["method"])]
        epochs, every = np.array(row["epochs"]), 100 * np.array(row["validation"])
        for axis, at, words in zip(
            axes[:, column], (epochs, epochs * row["epoch_s"]), ("epochs", "seconds"), strict=True
        ):
            axis.fill_between(at, every.min(axis=0), every.max(axis=0), color=colour, alpha=0.2, linewidth=0)
            axis.plot(at, every.mean(axis=0), color=colour, label=row["method"])
            plain(axis, row["graph"], words, "validation accuracy, %" if column == 0 else "")
    axes[0, 0].legend(frameon=False, fontsize=8)
    return figure


FIGURES: dict[str, Callable[[Rows], Any]] = {
    "tsne": draw_maps_before_and_after,
    "radar": draw_radar,
    "convergence": draw_curves,
}
"""How the figure of an experiment is drawn."""


def write_figure(name: str, rows: Rows, folder: Path) -> list[Path]:
    """Draw the figure of an experiment as PNG and SVG."""
    figure = FIGURES[name](rows)
    written = [folder / f"{name}.{ending}" for ending in ("png", "svg")]
    for path in written:
        save_figure(figure, path)
    return written
