"""Static figures: style, maps of nodes, charts of a run, and the profile of a graph."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from h3gnn.errors import InputError
from h3gnn.report.findings import RAW, TRAINED, UNTRAINED, Category, Floats, Measure, Member, Scoreboard
from h3gnn.storage.atomic import write_atomically

if TYPE_CHECKING:
    from h3gnn.graphs.profile import GraphProfile

ENDINGS = (".png", ".pdf", ".svg")

COLOURS = (
    "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#F0E442", "#999999",
    "#332288", "#882255", "#117733", "#DDCC77", "#44AA99", "#CC6677", "#999933", "#AA4499",
)  # fmt: skip
"""Okabe and Ito's colour-blind-safe palette, then Tol's muted one."""
REPRESENTATION_COLOURS = {RAW: "#999999", UNTRAINED: COLOURS[1], TRAINED: COLOURS[0]}
TOKEN_COLOURS = tuple(COLOURS[i] for i in (0, 5, 1, 4, 3, 2, 6, 7))
INK, SOFT, LINE = "#222222", "#666666", "#cccccc"
UNKNOWN = "#d0d0d0"
LOW, HIGH, GREY = "#c8553d", "#2a7f9e", "#d9d9d9"
"""Low homophily, high homophily, and background."""
MAP_AREA = 15_000.0
"""Total area of the points of a map."""
MAX_CLASSES = 20
"""With more classes, only those whose homophily differs most from the mean are drawn."""


def new_figure(width: float, height: float) -> Any:
    """Return an empty figure without a window; sizes in inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save_figure(figure: Any, path: Path) -> None:
    """Write a figure as PNG (300 dpi), PDF or SVG, with text as text."""
    import matplotlib as mpl

    suffix = path.suffix.lower()
    if suffix not in ENDINGS:
        raise InputError(f"{path}: the file must end in .png, .svg or .pdf", code="file-ending")
    buffer = io.BytesIO()
    undated = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(suffix)
    with mpl.rc_context({"svg.fonttype": "none", "pdf.fonttype": 42, "svg.hashsalt": "h3gnn"}):
        figure.savefig(buffer, format=suffix[1:], dpi=300, bbox_inches="tight", metadata=undated)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, buffer.getvalue())
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}", code="cannot-write") from None


def plain(axes: Any, title: str = "", x: str = "", y: str = "") -> None:
    """Label the axes and remove the top and right spines."""
    axes.set_title(title, loc="left", fontsize=10, color=INK)
    axes.set_xlabel(x, fontsize=9, color=INK)
    axes.set_ylabel(y, fontsize=9, color=INK)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(SOFT)
    axes.tick_params(labelsize=8, colors=INK)


def frame(axes: Any, title: str, **font: Any) -> None:
    """Draw the title and the square frame of a map, without ticks."""
    axes.set_title(title, color=INK, **font)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_box_aspect(1)
    for side in axes.spines.values():
        side.set_color(LINE)


def shorten(name: str, most: int = 24) -> str:
    """Truncate a name for an axis."""
    return name if len(name) <= most else f"{name[: most - 1]}…"


def known_range(values: Any) -> tuple[float, float]:
    """Return the 1st and the 99th percentile of the finite values."""
    low, high = np.nanpercentile(values, [1, 99]) if np.isfinite(values).any() else (0.0, 1.0)
    return float(low), float(high if high > low else low + 1)


def draw_maps(path: Path, maps: Mapping[str, Floats], colour: Category | Measure | None) -> None:
    """Draw maps `[nodes, 2]` side by side, by title."""
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
    axis: Any, positions: Floats, colour: Category | Measure | None, area: float = MAP_AREA
) -> Any:
    """Draw one map; return the points for the colour bar of a measure. `area` is that of all points."""
    style = {
        "s": float(np.clip(area / len(positions), 1.0, area / 500)),
        "linewidths": 0,
        "rasterized": len(positions) > 5_000,
    }
    if colour is None:
        return axis.scatter(*positions.T, color=COLOURS[0], **style)
    if isinstance(colour, Measure):
        low, high = known_range(colour.values)
        known = np.isfinite(colour.values)
        axis.scatter(*positions[~known].T, color=UNKNOWN, **style)
        values = colour.values[known]
        return axis.scatter(*positions[known].T, c=values, vmin=low, vmax=high, cmap="viridis", **style)
    unknown = colour.values < 0
    if unknown.any():
        axis.scatter(*positions[unknown].T, color=UNKNOWN, label="unknown", **style)
    for value, name in enumerate(colour.names):
        chosen = colour.values == value
        if chosen.any():
            tone = COLOURS[value % len(COLOURS)]
            axis.scatter(*positions[chosen].T, color=tone, label=shorten(name, 40), alpha=0.85, **style)
    return None


def draw_history(path: Path, columns: Mapping[str, Floats], members: Sequence[Member] = ()) -> None:
    """Draw loss, effective rank, size of the mask and difficulty by epoch, one line per model.

    The losses of a ensemble have different scales, so each member has its own chart.
    """
    if not columns:
        raise InputError("no history to draw: the run was fitted with --epochs 0", code="no-history")
    save_figure(_draw_members(columns, members) if members else _draw_run(columns), path)


def _draw_run(columns: Mapping[str, Floats]) -> Any:
    figure = new_figure(9, 5.6)
    (loss, rank), (mask, difficulty) = figure.subplots(2, 2)
    for axis, name, title in (
        (loss, "loss", "Loss"),
        (rank, "effective_rank", "Effective rank"),
        (mask, "masked", "Masked nodes"),
    ):
        plain(axis, title, "epoch")
        _draw_models(axis, columns[name], range(columns[name].shape[1]), COLOURS[0])
    quantile = {q: columns[f"difficulty_q{q}"].mean(axis=1) for q in (25, 50, 75)}
    at = np.flatnonzero(~np.isnan(quantile[50]))
    difficulty.fill_between(at, quantile[25][at], quantile[75][at], color=COLOURS[0], alpha=0.2, linewidth=0)
    difficulty.plot(at, quantile[50][at], color=COLOURS[0], linewidth=1.3)
    plain(difficulty, "Difficulty of the nodes: median and middle half", "epoch")
    for axis in (rank, mask, difficulty):
        axis.set_ylim(bottom=0)
    return figure


def _draw_members(columns: Mapping[str, Floats], members: Sequence[Member]) -> Any:
    """Draw the loss of each member, and below the effective rank and the size of the mask of all."""
    figure = new_figure(max(9, 2.6 * len(members)), 5.6)
    above, below = figure.subfigures(2, 1)
    losses, (rank, mask) = above.subplots(1, len(members)), below.subplots(1, 2)
    for place, (loss, member) in enumerate(zip(losses, members, strict=True)):
        colour = member_colour(place)
        plain(loss, f"Loss: {member.name}", "epoch")
        for axis, name in ((loss, "loss"), (rank, "effective_rank"), (mask, "masked")):
            _draw_models(axis, columns[name], member.models, colour)
        rank.plot([], [], color=colour, label=member.name)
    for axis, title in ((rank, "Effective rank"), (mask, "Masked nodes")):
        plain(axis, title, "epoch")
        axis.set_ylim(bottom=0)
    rank.legend(frameon=False, fontsize=8)
    return figure


def _draw_models(axis: Any, values: Floats, models: Iterable[int], colour: str) -> None:
    for model in models:
        at = np.flatnonzero(~np.isnan(values[:, model]))
        axis.plot(at, values[at, model], color=colour, linewidth=1.3, alpha=0.9)


def member_colour(place: int) -> str:
    """Return the colour of a member, different from those of the representations."""
    free = [colour for colour in COLOURS if colour not in REPRESENTATION_COLOURS.values()]
    return free[place % len(free)]


def draw_attention(path: Path, attention: Floats, tokens: Sequence[str], groups: Category | None) -> None:
    """Draw the distribution over nodes of the attention `[nodes, tokens]`, by class or cluster."""
    names: tuple[str, ...] = ("all nodes",)
    members = [np.ones(len(attention), dtype=bool)]
    if groups is not None:
        there = [value for value in range(len(groups.names)) if (groups.values == value).any()]
        names = tuple(shorten(groups.names[value], 18) for value in there)
        members = [groups.values == value for value in there]
    figure = new_figure(max(6.5, 1.6 + 1.3 * len(names)), 4)
    axis = figure.subplots()
    width = 0.8 / len(tokens)
    for token, title in enumerate(tokens):
        shade = TOKEN_COLOURS[token % len(TOKEN_COLOURS)]
        places = np.arange(len(names)) + (token - (len(tokens) - 1) / 2) * width
        boxes = axis.boxplot(
            [100 * attention[chosen, token] for chosen in members],
            positions=places, widths=0.8 * width, patch_artist=True, showfliers=False, whis=(5, 95),
            medianprops={"color": "white", "linewidth": 1.4},
        )  # fmt: skip
        for part in boxes["boxes"]:
            part.set(facecolor=shade, edgecolor=shade)
        for part in (*boxes["whiskers"], *boxes["caps"]):
            part.set_color(shade)
        axis.plot([], [], color=shade, linewidth=6, label=title)
    axis.axhline(100 / len(tokens), color="#888888", linewidth=0.8, linestyle=":", zorder=0)
    axis.set_xticks(range(len(names)), names)
    title = "Attention that each token gets: median, middle half, 5 to 95 %"
    plain(axis, title, y="% of a node's attention")
    figure.legend(loc="outside lower center", ncols=min(4, len(tokens)), frameon=False, fontsize=8)
    save_figure(figure, path)


def draw_accuracy(path: Path, scores: Scoreboard) -> None:
    """Draw test accuracy by local homophily and by class, for each representation."""
    if scores.homophily_bins is None or scores.homophily_counts is None or scores.class_counts is None:
        raise InputError("accuracy needs labels, but the graph has none", code="no-labels")
    classes = len(scores.class_names)
    figure = new_figure(10 + 0.3 * max(0, classes - 7), 4)
    left, right = figure.subplots(1, 2, width_ratios=(1, max(1.0, classes / 6)), sharey=True)
    bins = [f"{low:.1g}–{high:.1g}" for low, high in pairwise(scores.homophily_bins.tolist())]
    by_bin = {row.representation: row.by_homophily for row in scores.rows}
    _draw_bars(left, bins, scores.homophily_counts, by_bin)
    named = [shorten(name, 14) for name in scores.class_names]
    _draw_bars(right, named, scores.class_counts, {row.representation: row.by_class for row in scores.rows})
    plain(left, "Accuracy by local homophily", "share of neighbours in the own class", "test accuracy, %")
    plain(right, "Accuracy by class")
    handles, names = left.get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    save_figure(figure, path)


def _draw_bars(axis: Any, names: Sequence[str], counts: Any, values: Mapping[str, Floats | None]) -> None:
    places, width = np.arange(len(names)), 0.8 / len(values)
    for which, (representation, shares) in enumerate(values.items()):
        if shares is not None:
            known = REPRESENTATION_COLOURS.get(representation)
            shade = member_colour(which - len(REPRESENTATION_COLOURS)) if known is None else known
            offset = (which - (len(values) - 1) / 2) * width
            axis.bar(places + offset, 100 * shares, 0.92 * width, color=shade, label=representation)
    turned = 30 if sum(map(len, names)) > 60 else 0
    labels = [f"{name}\n{count:,}" for name, count in zip(names, counts, strict=True)]
    axis.set_xticks(places, labels, rotation=turned)
    axis.set_ylim(0, 100)


def plot_profile(measured: GraphProfile, path: str | Path) -> None:
    """Draw the profile of a graph: homophily by node and by class if there are labels, and statistics.

    The file is a .png, .svg or .pdf.
    """
    labelled = measured.node_homophily_histogram is not None and measured.class_homophily is not None
    figure = new_figure(11 if labelled else 5.5, 4.2)
    figure.suptitle(measured.source, x=0.01, ha="left", fontsize=13, fontweight="bold", color=INK)
    if labelled:
        left, middle, right = figure.subplots(1, 3, width_ratios=(1.25, 1.15, 0.9))
        _draw_node_homophily(left, measured)
        _draw_class_homophily(middle, measured)
    else:
        right = figure.subplots()
    _draw_statistics(right, measured)
    save_figure(figure, Path(path))


def _draw_node_homophily(axes: Any, measured: GraphProfile) -> None:
    counts = np.array(measured.node_homophily_histogram)
    centres = (np.arange(len(counts)) + 0.5) / len(counts)
    shares = 100 * counts / max(1, counts.sum())
    axes.bar(centres, shares, width=0.92 / len(counts), color=[_colour(centre) for centre in centres])
    axes.set_xlim(0, 1)
    title = "Nodes by share of neighbours in their class"
    plain(axes, title, "share of neighbours in the own class", "% of nodes with neighbours")


def _draw_class_homophily(axes: Any, measured: GraphProfile) -> None:
    known = [(name, share) for name, share in (measured.class_homophily or {}).items() if share is not None]
    overall = measured.edge_homophily or 0.0
    if len(known) > MAX_CLASSES:
        known = sorted(known, key=lambda one: -abs(one[1] - overall))[:MAX_CLASSES]
    names, shares, places = (
        [shorten(name) for name, _ in known],
        [share for _, share in known],
        range(len(known)),
    )
    axes.barh(places, [1] * len(known), color=GREY, height=0.7, alpha=0.5)
    axes.barh(places, shares, color=[_colour(share) for share in shares], height=0.7)
    for place, share in zip(places, shares, strict=True):
        axes.text(1.02, place, f"{share:.2f}", va="center", fontsize=8, color=INK)
    axes.axvline(overall, color=INK, linewidth=1, linestyle="--", label=f"all edges: {overall:.2f}")
    axes.set_yticks(list(places), names, fontsize=8)
    axes.set_xlim(0, 1)
    axes.set_ylim(len(known) - 0.5, -1.0)
    axes.legend(fontsize=8, frameon=False, loc="upper right", bbox_to_anchor=(1, 1.02))
    plain(axes, "Homophily by class", "share of edges from the own class")


def _draw_statistics(axes: Any, measured: GraphProfile) -> None:
    axes.axis("off")
    lines = [
        ("nodes", f"{measured.nodes:,}"),
        ("edges", f"{measured.edges:,}{' directed' if measured.directed else ''}"),
        ("mean degree", f"{measured.degrees.mean:.2f}"),
        ("components", f"{measured.components:,}"),
        ("isolated nodes", f"{measured.isolated:,}"),
        ("features", f"{measured.features:,}"),
        ("not 0", f"{100 * measured.feature_density:.2f} %"),
        ("smoothness, centred", _number(measured.centred_smoothness)),
        ("edge homophily", _number(measured.edge_homophily)),
        ("adjusted homophily", _number(measured.adjusted_homophily)),
        ("label informativeness", _number(measured.label_informativeness)),
    ]
    for row, (name, value) in enumerate(lines):
        height = 0.97 - row / len(lines)
        axes.text(0.0, height, name, transform=axes.transAxes, fontsize=9, color=SOFT, va="top")
        axes.text(1.0, height, value, transform=axes.transAxes, fontsize=9, color=INK, va="top", ha="right")


def _colour(share: float) -> tuple[float, float, float, float]:
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("homophily", [LOW, "#e0c08a", HIGH])(share)


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
