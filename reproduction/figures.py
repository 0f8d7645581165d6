"""The paper's figures, drawn from stored rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from h3gnn.report.figures import COLOURS, LINE, SOFT, draw_nodes, frame, new_figure, plain, save_figure
from h3gnn.report.findings import Category

Rows = Sequence[Mapping[str, Any]]
SIDES = {"before": "features", "after": "embedding"}


def draw_maps_before_and_after(rows: Rows) -> Any:
    """Draw each graph's two maps, the features above and the embedding below."""
    figure = new_figure(2.3 * len(rows), 4.9)
    axes = figure.subplots(2, len(rows), squeeze=False)
    for column, row in enumerate(rows):
        classes = Category("class", "class", tuple(row["classes"]), np.array(row["labels"]))
        for axis, (which, title) in zip(axes[:, column], SIDES.items(), strict=True):
            draw_nodes(axis, np.array(row[which]).T, classes, area=3_000)
            frame(axis, f"{row['graph']}: {title}", fontsize=9)
    return figure


def draw_radar(rows: Rows) -> Any:
    """Draw one axis for each graph and one polygon for each method; H3GNN's are solid."""
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
        style = "-" if method.startswith("H3GNN") else "--"
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


def draw_theory(rows: Rows) -> Any:
    """Draw, a column per graph, what the paper's theorem is about.

    From above: distance to the limit and gap of the loss, for gradient descent and Adam; the error against
    what the mask moves; the change of the gradient per step; accuracy on validation nodes. Lines are means
    over seeds, bands go from the lowest to the highest.
    """
    graphs = list(dict.fromkeys(row["graph"] for row in rows))
    methods = list(dict.fromkeys(row["method"] for row in rows))
    figure = new_figure(2.9 * len(graphs), 2.0 * len(SIDES_OF_THEORY))
    axes = figure.subplots(len(SIDES_OF_THEORY), len(graphs), squeeze=False)
    for row in rows:
        own, epochs = axes[:, graphs.index(row["graph"])], row["epochs"]
        look = {"color": COLOURS[methods.index(row["method"])], "label": row["method"]}
        for axis, curve in zip(own, ("distance", "gap"), strict=False):
            _band(axis, epochs, row["descent"][curve], linestyle="-", **look)
            _band(axis, epochs, row["adam"][curve], linestyle=":", **look)
            axis.set(yscale="log", ylim=(1e-3, 2))
        for state, style in (("trained", "o-"), ("untrained", "o:")):
            shift, error = (np.mean(row["masks"][state][name], axis=0) for name in ("shift", "error"))
            own[2].plot(shift, error, style, markersize=3, lw=1.5, **look)
        _band(own[3], epochs, row["gradients"]["smoothness"], **look)
        own[3].set_yscale("log")
        own[3].tick_params(which="both", labelsize=8)
        _band(own[4], epochs, 100 * np.array(row["validation"]), **look)
    for place, axis in np.ndenumerate(axes):
        side, column = place
        y, x = SIDES_OF_THEORY[side]
        plain(axis, graphs[column] if side == 0 else "", x, y if column == 0 else "")
    figure.align_ylabels(axes[:, 0])
    _theory_key(figure, methods)
    return figure


SIDES_OF_THEORY = (
    ("A: distance to the limit", "epochs"),
    ("A: gap of the loss", "epochs"),
    ("B: relative error", "relative shift δ by the mask"),
    ("C: change of the encoder's\ngradient per step", "epochs of gradient descent"),
    ("validation accuracy, %", "epochs with Adam"),
)
"""What stands at the vertical and the horizontal axis of each row of `draw_theory`."""


def _band(axis: Any, at: Any, every: Any, **look: Any) -> None:
    """Draw the mean of some curves, and the band between the lowest and the highest."""
    values = np.array(every, dtype=float)
    axis.fill_between(
        at, values.min(axis=0), values.max(axis=0), color=look["color"], alpha=0.15, linewidth=0
    )
    axis.plot(at, values.mean(axis=0), lw=1.5, **look)


def _theory_key(figure: Any, methods: Sequence[str]) -> None:
    """Explain colours and styles below the figure."""
    from matplotlib.lines import Line2D

    told = [Line2D([], [], color=colour, label=name) for name, colour in zip(methods, COLOURS, strict=False)]
    told += [
        Line2D([], [], color=SOFT, linestyle="-", label="gradient descent; trained"),
        Line2D([], [], color=SOFT, linestyle=":", label="Adam; untrained"),
    ]
    figure.legend(handles=told, loc="outside lower center", ncols=4, frameon=False, fontsize=8)


FIGURES: dict[str, Callable[[Rows], Any]] = {
    "tsne": draw_maps_before_and_after,
    "radar": draw_radar,
    "convergence": draw_theory,
}
"""How the figure of an experiment is drawn."""


def write_figure(name: str, rows: Rows, folder: Path) -> list[Path]:
    """Draw the figure of an experiment as PNG and SVG."""
    figure = FIGURES[name](rows)
    written = [folder / f"{name}.{ending}" for ending in ("png", "svg")]
    for path in written:
        save_figure(figure, path)
    return written
