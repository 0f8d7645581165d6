"""A picture of what kind of graph it is: homophily over nodes, by class, and the figures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from h3gnn.report.pictures import INK, SOFT, new_figure, plain, save_figure, shorten

if TYPE_CHECKING:
    from h3gnn.graphs.profile import GraphProfile

LOW, HIGH, GREY = "#c8553d", "#2a7f9e", "#d9d9d9"
"""Neighbours of other classes, neighbours of the own class, and the rest."""

MOST_CLASSES = 20
"""With more classes, bars are drawn for the largest departures from the mean only."""


def plot_profile(measured: GraphProfile, path: str | Path) -> None:
    """Draw a graph's profile into a file.

    With labels: how many nodes have which share of neighbours in their class, the same by class, and the
    figures beside. Without: the figures alone.

    Args:
        measured: what `profile` measured.
        path: .png, .svg or .pdf.

    Raises:
        InputError: when the file cannot be written or its suffix is not known.
    """
    labelled = measured.node_homophily_histogram is not None and measured.class_homophily is not None
    figure = new_figure(11 if labelled else 5.5, 4.2)
    figure.suptitle(measured.source, x=0.01, ha="left", fontsize=13, fontweight="bold", color=INK)
    if labelled:
        left, middle, right = figure.subplots(1, 3, width_ratios=(1.25, 1.15, 0.9))
        _draw_nodes(left, measured)
        _draw_classes(middle, measured)
    else:
        right = figure.subplots()
    _draw_figures(right, measured)
    save_figure(figure, Path(path))


def _draw_nodes(axes: Any, measured: GraphProfile) -> None:
    counts = measured.node_homophily_histogram or ()
    total = max(1, sum(counts))
    centres = [(position + 0.5) / len(counts) for position in range(len(counts))]
    shares = [100 * count / total for count in counts]
    axes.bar(centres, shares, width=0.92 / len(counts), color=[_colour(centre) for centre in centres])
    axes.set_xlim(0, 1)
    words = ("share of neighbours in the own class", "% of nodes with neighbours")
    plain(axes, "Nodes by share of neighbours in their class", *words)


def _draw_classes(axes: Any, measured: GraphProfile) -> None:
    known = [(name, share) for name, share in (measured.class_homophily or {}).items() if share is not None]
    overall = measured.edge_homophily or 0.0
    if len(known) > MOST_CLASSES:
        known = sorted(known, key=lambda one: -abs(one[1] - overall))[:MOST_CLASSES]
    names = [shorten(name) for name, _ in known]
    shares = [share for _, share in known]
    places = range(len(known))
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


def _draw_figures(axes: Any, measured: GraphProfile) -> None:
    axes.axis("off")
    lines = [
        ("nodes", f"{measured.nodes:,}"),
        ("edges", f"{measured.edges:,}{' directed' if measured.directed else ''}"),
        ("mean degree", f"{measured.degrees.mean:.2f}"),
        ("components", f"{measured.components:,}"),
        ("isolated nodes", f"{measured.isolated:,}"),
        ("features", f"{measured.features:,}"),
        ("not 0", f"{100 * measured.feature_density:.2f} %"),
        ("smoothness, centred", _figure(measured.centred_smoothness)),
        ("edge homophily", _figure(measured.edge_homophily)),
        ("adjusted homophily", _figure(measured.adjusted_homophily)),
        ("label informativeness", _figure(measured.label_informativeness)),
    ]
    for row, (name, value) in enumerate(lines):
        height = 0.97 - row / len(lines)
        axes.text(0.0, height, name, transform=axes.transAxes, fontsize=9, color=SOFT, va="top")
        axes.text(1.0, height, value, transform=axes.transAxes, fontsize=9, color=INK, va="top", ha="right")


def _colour(share: float) -> tuple[float, float, float, float]:
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("homophily", [LOW, "#e0c08a", HIGH])(share)


def _figure(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
