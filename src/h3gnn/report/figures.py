"""The look of all pictures and their files; maps, and the figures of the experiments."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
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

Rows = Sequence[Mapping[str, Any]]
SIDES = {"before": "features", "after": "embedding"}


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
