"""Stored rows become Markdown: a table's words with the blocks that they name."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from h3gnn.evaluation.results import RepeatedScore, paired_test
from h3gnn.experiments.tables import claims as theory
from h3gnn.experiments.tables import readings
from h3gnn.experiments.tables.specifications import TABLES, Entry, MeanStd, Table, paper_tables, printed

Row = dict[str, Any]
"""A stored row of a table."""
Figures = dict[tuple[str, str, str], MeanStd]
"""Mean and standard deviation by method, graph and protocol, in percent."""

NOTHING, TOO_LARGE = "–", "too large"
TITLES = {"citeseer": "CiteSeer", "pubmed": "PubMed"}
"""Graphs that the paper writes otherwise than with a first capital."""
PROTOCOL_NAMES = {"published": "ours, `published`", "validation": "ours, `validation`"}
MORE_MEASURES = {"nmi": "NMI", "ari": "ARI", "macro_f1": "macro-F1"}
COUNTS = ("nodes", "edges", "features", "classes")


def markdown_of(content: dict[str, Any]) -> str:
    """Return the Markdown of a stored result."""
    table, rows = TABLES[content["experiment"]], content["rows"]
    parts = [f"## {table.title}"]
    if content["quick"] and any(row.get("seeds") for row in rows):
        parts.append(
            "A quick look with tiny settings: it shows that everything runs; its figures mean nothing."
        )
    if content["missing"]:
        parts.append(f"Not run yet: {_grouped(content['missing'])}.")
    parts.append(re.sub(r"\{(\w+)\}", lambda mark: BLOCKS[mark[1]](table, rows), table.words))
    return "\n\n".join(parts) + "\n"


def grid(headings: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    rows = [headings, ["---"] * len(headings), *lines]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def graph_title(name: str) -> str:
    """Return a graph's name as the paper writes it."""
    return TITLES.get(name, name.capitalize())


def percent(figure: MeanStd | None) -> str:
    """Return mean ± standard deviation of figures that are in percent already."""
    return NOTHING if figure is None else f"{figure[0]:.2f} ± {figure[1]:.2f}"


def figure_of(row: Row, measure: str = "probe") -> MeanStd | None:
    """Return a row's test accuracy, or a measure of how its clusters agree with the classes, in percent."""
    if measure == "probe":
        return 100 * row["probe"]["test_mean"], 100 * row["probe"]["test_std"]
    if row["clustering"] is None:
        return None
    return 100 * row["clustering"][measure]["mean"], 100 * row["clustering"][measure]["std"]


def figures_of(rows: Sequence[Row], measure: str = "probe") -> Figures:
    """Return the figures of stored rows."""
    found = {(row["method"], row["graph"], row["protocol"]): figure_of(row, measure) for row in rows}
    return {key: value for key, value in found.items() if value is not None}


def side_by_side(table: Table, rows: Sequence[Row]) -> str:
    """Set the paper and both protocols of ours beside one another; the paper's other methods follow."""
    paper, figures = printed(table.name), figures_of(rows, table.measure)
    there = {row["method"] for row in rows}
    entries = [entry for entry in table.entries if entry.title in there]
    lines: list[list[str]] = []

    def add(method: str, whose: str, values: dict[str, MeanStd | None], entry: Entry | None = None) -> None:
        if any(values.get(graph) for graph in table.graphs):
            shown = [
                TOO_LARGE if entry and entry.too_large(graph) else percent(values.get(graph))
                for graph in table.graphs
            ]
            lines.append([method, whose, *shown])

    for entry in entries:
        add(entry.title, "paper", paper.get(entry.printed, {}))
        for protocol, words in PROTOCOL_NAMES.items():
            add(entry.title, words, {g: figures.get((entry.title, g, protocol)) for g in table.graphs}, entry)
    for name, values in paper.items():
        if name not in [entry.printed for entry in entries]:
            add(name, "paper", values)
    return grid(["method", "whose figures", *map(graph_title, table.graphs)], lines)


def selection(table: Table, rows: Sequence[Row]) -> str:
    """Say what choosing on test nodes adds: the paper, ours chosen so, and the same runs without it."""
    paper, figures = printed(table.name), figures_of(rows, table.measure)
    lines = []
    for entry in table.entries:
        for graph in table.graphs:
            theirs = paper.get(entry.printed, {}).get(graph)
            chosen, honest = (figures.get((entry.title, graph, one)) for one in PROTOCOL_NAMES)
            if theirs is None or chosen is None or honest is None:
                continue
            below = theirs[0] - chosen[0]
            reached = "yes" if chosen[0] >= theirs[0] - theirs[1] else f"no, {abs(below):.2f} below"
            shown = [percent(theirs), percent(chosen), reached, percent(honest)]
            lines.append([entry.title, graph_title(graph), *shown, f"{chosen[0] - honest[0]:+.2f}"])
    headings = [
        "method",
        "graph",
        "paper",
        "chosen on test nodes",
        "reaches the paper's cell less one std",
        "the same runs, nothing chosen on test nodes",
        "what the choice adds",
    ]
    return grid(headings, lines)


def pairs(table: Table, rows: Sequence[Row]) -> str:
    """Return each entry's difference to the first under `validation`, in points, with its p-value."""
    scores = {
        (row["method"], row["graph"]): RepeatedScore.from_dict(row["probe"])
        for row in rows
        if row["protocol"] == "validation"
    }
    base, *others = (entry.title for entry in table.entries)
    lines = [
        [one, *(_difference(scores.get((one, graph)), scores.get((base, graph))) for graph in table.graphs)]
        for one in others
    ]
    return grid([f"difference to {base}, `validation`, points (p)", *map(graph_title, table.graphs)], lines)


def _difference(one: RepeatedScore | None, base: RepeatedScore | None) -> str:
    if one is None or base is None:
        return NOTHING
    both = min(len(one.values), len(base.values))  # the seeds that both had
    tested = paired_test(RepeatedScore(one.values[:both]), RepeatedScore(base.values[:both]))
    return f"{100 * tested.difference:+.2f} ({tested.p_value:.2f})"


def measures(table: Table, rows: Sequence[Row]) -> str:
    """Return the other measures of k-means under `validation`."""
    lines = []
    for measure, title in MORE_MEASURES.items():
        figures = figures_of(rows, measure)
        for entry in table.entries:
            values = [figures.get((entry.title, graph, "validation")) for graph in table.graphs]
            lines.append([title, entry.title, *map(percent, values)])
    return grid(["measure", "method", *map(graph_title, table.graphs)], lines)


def statistics(table: Table, rows: Sequence[Row]) -> str:
    """Return what the graphs are, as the paper says and as they are loaded."""
    found = {row["graph"]: row for row in rows}
    paper = {name: values for name, *values in paper_tables()[table.name]["rows"]}
    lines = []
    for graph in (name for name in table.graphs if name in found):
        if graph in paper:
            *counts, homophily = paper[graph]
            told = [f"{value:,}" for value in counts[:4]]
            lines.append([graph_title(graph), "paper", *told, f"{homophily:.2f}", NOTHING, NOTHING])
        row = found[graph]
        shares = [row["homophily"], row["node_homophily"], row["adjusted_homophily"]]
        told = [f"{row[name]:,}" for name in COUNTS]
        lines.append([graph_title(graph), "as loaded", *told, *(f"{share:.2f}" for share in shares)])
    headings = ["graph", "whose figures", *COUNTS, "edge homophily", "node homophily", "adjusted homophily"]
    return grid(headings, lines)


def efficiency(table: Table, rows: Sequence[Row]) -> str:
    """Return memory and times, the paper's and ours."""
    paper = paper_tables()[table.name]
    lines = []
    for place, graph in enumerate(paper["graphs"]):
        for row in paper["rows"]:
            memory, epoch, total = row["values"][place]
            told = [f"{memory:.1f}", f"{1000 * epoch:.0f}", f"{total:.2f}"]
            lines.append([graph_title(graph), f"{row['method']} (paper)", "the paper's GPU", *told])
        for row in (one for one in rows if one["graph"] == graph):
            told = [f"{row['memory_mb']:.1f}", f"{1000 * row['epoch_s']:.2f}", f"{row['total_s']:.2f}"]
            lines.append([graph_title(graph), row["method"], row["device"], *told])
    return grid(["graph", "method", "device", "memory, MB", "epoch, ms", "total, s"], lines)


def claims(table: Table, rows: Sequence[Row]) -> str:
    """Return a sentence with a verdict for each claim of the paper's theory."""
    pairs = theory.pairs_of(rows, graph_title)
    return "\n".join(claim.sentence(pairs) for claim in theory.CLAIMS)


def _of_theory(cells: Callable[[Sequence[Row]], readings.Cells]) -> Callable[[Table, Sequence[Row]], str]:
    """Return the block of one of the theory's tables."""

    def block(table: Table, rows: Sequence[Row]) -> str:
        headings, lines = cells(rows)
        return grid(headings, [[graph_title(graph), *told] for graph, *told in lines])

    return block


BLOCKS: dict[str, Callable[[Table, Sequence[Row]], str]] = {
    block.__name__: block
    for block in (side_by_side, selection, pairs, measures, statistics, efficiency, claims)
} | {cells.__name__: _of_theory(cells) for cells in (readings.settling, readings.bounds, readings.accuracy)}
"""What a table's words can name."""


def _grouped(missing: Sequence[str]) -> str:
    """Return `a on x`, `b on x`, `a on y`, `b on y` as "a, b on x, y"."""
    graphs: dict[str, list[str]] = {}
    for line in missing:
        method, _, graph = line.rpartition(" on ")
        graphs.setdefault(method, []).append(graph)
    methods: dict[tuple[str, ...], list[str]] = {}
    for method, found in graphs.items():
        methods.setdefault(tuple(found), []).append(method)
    return "; ".join(f"{', '.join(some)} on {', '.join(found)}" for found, some in methods.items())
