"""Static pictures of a run: its maps, its training, its attention, its accuracy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from h3gnn.errors import InputError
from h3gnn.report.findings import RAW, TRAINED, UNTRAINED, Category, Floats, Measure, Member, Scoreboard
from h3gnn.report.pictures import COLOURS, frame, known_range, new_figure, plain, save_figure, shorten

REPRESENTATION_COLOURS = {RAW: "#999999", UNTRAINED: COLOURS[1], TRAINED: COLOURS[0]}
TOKEN_COLOURS = tuple(COLOURS[i] for i in (0, 5, 1, 4, 3, 2, 6, 7))

UNKNOWN = "#d0d0d0"
INK_OF_A_MAP = 15_000.0


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


def draw_history(path: Path, columns: Mapping[str, Floats], members: Sequence[Member] = ()) -> None:
    """Draw loss, effective rank, size of the mask and difficulty over the epochs; one line per model.

    Of a committee, the losses stand beside one another, since each member counts in units of its own.
    """
    if not columns:
        raise InputError("this run has no epochs to draw: it was fitted with --epochs 0")
    figure = _draw_members(columns, members) if members else _draw_run(columns)
    save_figure(figure, path)


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
    for axis in (rank, mask):
        axis.set_ylim(bottom=0)
    _draw_difficulty(difficulty, columns)
    return figure


def _draw_members(columns: Mapping[str, Floats], members: Sequence[Member]) -> Any:
    """Draw a loss for each member, and below them the effective rank and the size of the mask of all."""
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


def _draw_difficulty(axis: Any, columns: Mapping[str, Floats]) -> None:
    quantile = {q: columns[f"difficulty_q{q}"].mean(axis=1) for q in (25, 50, 75)}
    at = np.flatnonzero(~np.isnan(quantile[50]))
    axis.fill_between(at, quantile[25][at], quantile[75][at], color=COLOURS[0], alpha=0.2, linewidth=0)
    axis.plot(at, quantile[50][at], color=COLOURS[0], linewidth=1.3)
    plain(axis, "Difficulty of the nodes: median and middle half", "epoch")
    axis.set_ylim(bottom=0)


def member_colour(place: int) -> str:
    """Return the colour of a member, which no representation beside it has."""
    free = [colour for colour in COLOURS if colour not in REPRESENTATION_COLOURS.values()]
    return free[place % len(free)]


def draw_attention(path: Path, attention: Floats, tokens: Sequence[str], groups: Category | None) -> None:
    """Draw how much attention each token gets: its distribution over the nodes, in each group.

    Args:
        path: the file.
        attention: `[nodes, tokens]`.
        tokens: what each token sees.
        groups: classes or clusters; None draws all nodes together.
    """
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
    plain(
        axis, "Attention that each token gets: median, middle half, 5 to 95 %", "", "% of a node's attention"
    )
    figure.legend(loc="outside lower center", ncols=min(4, len(tokens)), frameon=False, fontsize=8)
    save_figure(figure, path)


def draw_accuracy(path: Path, scores: Scoreboard) -> None:
    """Draw test accuracy by local homophily and by class, for each representation."""
    if scores.homophily_bins is None or scores.homophily_counts is None or scores.class_counts is None:
        raise InputError("accuracy needs labels, and this run has none")
    classes = len(scores.class_names)
    figure = new_figure(10 + 0.3 * max(0, classes - 7), 4)
    left, right = figure.subplots(1, 2, width_ratios=(1, max(1.0, classes / 6)), sharey=True)
    bins = scores.homophily_bins
    between = [f"{low:.1g}–{high:.1g}" for low, high in pairwise(bins.tolist())]
    _draw_bars(
        left, between, scores.homophily_counts, {row.representation: row.by_homophily for row in scores.rows}
    )
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
