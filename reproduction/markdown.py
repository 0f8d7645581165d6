"""Stored rows become Markdown: a table's words with the blocks that they name."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from h3gnn.evaluation.protocols import EVERY
from h3gnn.evaluation.results import RepeatedScore, paired_test
from reproduction import claims as theory
from reproduction.files import read_json
from reproduction.origin import NOT_RECORDED, code
from reproduction.search import CHOICES
from reproduction.specifications import (
    Entry,
    MeanStd,
    Table,
    find_entry,
    paper_tables,
    paper_title,
    printed,
    tables,
)

Row = dict[str, Any]
"""A stored row of a table."""
Figures = dict[tuple[str, str, str], MeanStd]
"""Mean and standard deviation by method, graph and protocol, in percent."""

NOTHING, TOO_LARGE = "–", "too large"
TITLES = {"citeseer": "CiteSeer", "pubmed": "PubMed"}
"""Graphs that the paper writes otherwise than with a first capital."""
PROTOCOL_NAMES = {name: f"here, `{name}`" for name in ("nested", "pooled", "published", "validation")}
MORE_MEASURES = {"nmi": "NMI", "ari": "ARI", "macro_f1": "macro-F1"}
COUNTS = ("nodes", "edges", "features", "classes")


def markdown_of(content: dict[str, Any]) -> str:
    """Return the Markdown of a stored result."""
    table, rows = tables()[content["experiment"]], content["rows"]
    parts = [f"## {table.title}"]
    if content["quick"] and any(row.get("seeds") for row in rows):
        parts.append(
            "A quick look with tiny settings: it shows that everything runs; its figures mean nothing."
        )
    if content["missing"]:
        parts.append(f"Not run yet: {_grouped(content['missing'])}.")
    if not rows:
        return "\n\n".join(parts) + "\n"
    parts.append(re.sub(r"\{(\w+)\}", lambda mark: BLOCKS[mark[1]](table, rows), table.words))
    parts.append(made_at(rows))
    return "\n\n".join(parts) + "\n"


def made_at(rows: Sequence[Row]) -> str:
    """Say at which commits rows were made, and which parts of the code have changed since."""
    known = [row["origin"] for row in rows if row.get("origin")]
    if not known:
        return f"The commit at which these rows were made is {NOT_RECORDED}."
    commits = Counter(row["origin"]["commit"] if row.get("origin") else NOT_RECORDED for row in rows)
    told = ", ".join(f"{commit} ({many} row{'s' * (many > 1)})" for commit, many in commits.items())
    since = []
    for part, today in code().items():
        other = sum(one["code"].get(part) != today for one in known)
        some = f" (for {other} of {len(known)} rows)" if 0 < other < len(known) else ""
        since.append(f"{part} {'changed' if other else 'unchanged'}{some}")
    return f"Rows made at commits {told}; since then: {', '.join(since)}."


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


def figure_of(row: Row) -> MeanStd:
    """Return a row's test accuracy in percent."""
    return 100 * row["probe"]["test_mean"], 100 * row["probe"]["test_std"]


def figures_of(rows: Sequence[Row]) -> Figures:
    """Return the figures of stored rows; those with something taken out are left out."""
    whole = (row for row in rows if not row.get("part") and not _is_empty(row))
    return {(row["method"], row["graph"], row["protocol"]): figure_of(row) for row in whole}


def _is_empty(row: Row) -> bool:
    """Whether a row says nothing of its own: a pooled choice among one setting is none."""
    return bool(row["protocol"] == "pooled" and len(row["params"].get("tried", ())) == 1)


def side_by_side(table: Table, rows: Sequence[Row]) -> str:
    """Set the paper and our rules of choosing beside one another; the paper's other methods follow."""
    paper, figures = printed(table.name), figures_of(rows)
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
        add(entry.title, "printed", paper.get(entry.printed, {}))
        for protocol, words in PROTOCOL_NAMES.items():
            add(entry.title, words, {g: figures.get((entry.title, g, protocol)) for g in table.graphs}, entry)
    for name, values in paper.items():
        if name not in [entry.printed for entry in entries]:
            add(name, "printed", values)
    return grid(["method", "whose figures", *map(graph_title, table.graphs)], lines)


def parts(table: Table, rows: Sequence[Row]) -> str:
    """Return what was chosen, and the same with one thing taken out, under `nested`."""
    known = {(row["method"], row.get("part", ""), row["graph"]): figure_of(row) for row in _nested(rows)}
    names = dict.fromkeys((method, part) for method, part, _ in known)
    with_parts = {method for method, part in names if part}
    lines = [
        [method, part or "all of it", *(percent(known.get((method, part, graph))) for graph in table.graphs)]
        for method, part in sorted(names, key=lambda one: _place(table, one[0]))
        if method in with_parts
    ]
    return grid(["method", "what is taken out", *map(graph_title, table.graphs)], lines)


def selection(table: Table, rows: Sequence[Row]) -> str:
    """Say what each rule of choosing adds to `nested`, in points, beside what the paper prints."""
    paper, figures = printed(table.name), figures_of(rows)
    lines = []
    for entry in table.entries:
        for graph in table.graphs:
            theirs = paper.get(entry.printed, {}).get(graph)
            nested, pooled, chosen = (
                figures.get((entry.title, graph, one)) for one in ("nested", "pooled", "published")
            )
            if nested is None or chosen is None:
                continue
            shown = [percent(nested), _more(pooled, nested), _more(chosen, nested), percent(theirs)]
            reached = "–" if theirs is None else _reached(chosen, theirs)
            lines.append([entry.title, graph_title(graph), *shown, reached])
    headings = [
        "method",
        "graph",
        "`nested`",
        "`pooled` adds",
        "`published` adds",
        "printed",
        "`published` reaches the printed figure less one std",
    ]
    return grid(headings, lines)


def _more(one: MeanStd | None, than: MeanStd) -> str:
    return NOTHING if one is None else f"{one[0] - than[0]:+.2f}"


def _reached(chosen: MeanStd, theirs: MeanStd) -> str:
    return "yes" if chosen[0] >= theirs[0] - theirs[1] else f"no, {theirs[0] - chosen[0]:.2f} below"


def allowed(table: Table, rows: Sequence[Row]) -> str:
    """Return how many settings each row tried on each graph, of how many it was given, and the seconds."""
    given: dict[str, dict[str, Any]] = {}
    found: dict[tuple[str, str], str] = {}
    for row in rows:
        about = row["params"]
        if row.get("protocol", "nested") in ("nested", "validation") and not row.get("part"):
            given.setdefault(row["method"], about.get("allowed") or about.get("allowance") or {})
            tried = row["tried"] if "tried" in row else len(about.get("tried", [{}]))
            spent = row.get("searched_s", about.get("searched_s"))
            found[row["method"], row["graph"]] = str(tried) + ("" if spent is None else f" ({spent:.0f} s)")
    lines = [
        [method, _in_words(given[method]), *(found.get((method, graph), NOTHING) for graph in table.graphs)]
        for method in sorted(given, key=lambda one: _place(table, one))
    ]
    return "Settings tried, and seconds:\n\n" + grid(
        ["method", "given", *map(graph_title, table.graphs)], lines
    )


def _in_words(given: dict[str, Any]) -> str:
    if given.get("trials", 1) <= 1:
        return "its own settings"
    words = [f"{given['trials']} settings"]
    if given.get("looks"):
        words.append(f"each at {len(given['looks'])} epochs")
    if given.get("seconds") is not None:
        words.append(f"{given['seconds']:.0f} s")
    return ", ".join(words)


def _nested(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row["protocol"] == "nested"]


def _place(table: Table, method: str) -> int:
    """Return the place of a method in its table, for a stable order."""
    return next((at for at, entry in enumerate(table.entries) if entry.title == method), len(table.entries))


def pairs(table: Table, rows: Sequence[Row]) -> str:
    """Return each entry's difference to the first under `nested`, in points, with its p-value."""
    scores = {
        (row["method"], row["graph"]): RepeatedScore.from_dict(row["probe"])
        for row in _nested(rows)
        if not row.get("part")
    }
    base, *others = (entry.title for entry in table.entries)
    lines = [
        [one, *(_difference(scores.get((one, graph)), scores.get((base, graph))) for graph in table.graphs)]
        for one in others
    ]
    return grid([f"difference to {base}, `nested`, points (p)", *map(graph_title, table.graphs)], lines)


def _difference(one: RepeatedScore | None, base: RepeatedScore | None) -> str:
    if one is None or base is None:
        return NOTHING
    both = min(len(one.values), len(base.values))  # the seeds that both had
    tested = paired_test(RepeatedScore(one.values[:both]), RepeatedScore(base.values[:both]))
    return f"{100 * tested.difference:+.2f} ({tested.p_value:.2f})"


def clusters(table: Table, rows: Sequence[Row]) -> str:
    """Return the accuracy of k-means with settings that no label chose, beside what the paper prints."""
    paper, lines = printed(table.name), []
    for entry in table.entries:
        theirs = paper.get(entry.printed, {})
        if any(theirs.values()):
            lines.append([entry.title, "printed", *(percent(theirs.get(graph)) for graph in table.graphs)])
        for choice in CHOICES[:2]:
            lines += _clustered(table, rows, entry.title, choice, "acc", f"here, {choice}")
    return grid(["method", "whose figures", *map(graph_title, table.graphs)], lines)


def clusters_by_labels(table: Table, rows: Sequence[Row]) -> str:
    """Return what the accuracy of k-means would be with settings that labels chose."""
    lines = []
    for entry in table.entries:
        for choice in CHOICES[1:]:
            lines += _clustered(table, rows, entry.title, choice, "acc", choice)
    return grid(["method", "settings chosen", *map(graph_title, table.graphs)], lines)


def measures(table: Table, rows: Sequence[Row]) -> str:
    """Return the other measures of k-means, with settings chosen without labels."""
    lines = []
    for measure, title in MORE_MEASURES.items():
        for entry in table.entries:
            lines += _clustered(table, rows, entry.title, CHOICES[1], measure, title)
    return grid(["method", "measure", *map(graph_title, table.graphs)], lines)


def _clustered(
    table: Table, rows: Sequence[Row], method: str, choice: str, measure: str, words: str
) -> list[list[str]]:
    own = (row for row in rows if row["method"] == method and choice in row["choices"])
    known = {row["graph"]: row["choices"][choice]["values"][measure] for row in own}
    shown = [
        percent((100 * float(np.mean(known[graph])), 100 * float(np.std(known[graph]))))
        if graph in known
        else NOTHING
        for graph in table.graphs
    ]
    return [[method, words, *shown]] if known else []


def masks(table: Table, rows: Sequence[Row]) -> str:
    """Return the mean share of nodes that masks hide, with each way to bound their size."""
    shown = {"bounded": "checked, as printed", "free": "not checked", "exact": "size kept"}
    known = {(row["method"], row["graph"]): row["shares"] for row in rows}
    lines = [
        [entry.title, words, *(_share(known.get((entry.title, graph)), size) for graph in table.graphs)]
        for size, words in shown.items()
        for entry in table.entries
    ]
    return grid(["", "the mask's size", *map(graph_title, table.graphs)], lines)


def _share(shares: dict[str, float] | None, size: str) -> str:
    return NOTHING if shares is None else f"{100 * shares[size]:.1f} %"


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


def _of_theory(cells: Callable[[Sequence[Row]], theory.Cells]) -> Callable[[Table, Sequence[Row]], str]:
    """Return the block of one of the theory's tables."""

    def block(table: Table, rows: Sequence[Row]) -> str:
        headings, lines = cells(rows)
        return grid(headings, [[graph_title(graph), *told] for graph, *told in lines])

    return block


BLOCKS: dict[str, Callable[[Table, Sequence[Row]], str]] = {
    block.__name__: block
    for block in (
        side_by_side,
        parts,
        selection,
        allowed,
        pairs,
        clusters,
        clusters_by_labels,
        measures,
        masks,
        statistics,
        efficiency,
        claims,
    )
} | {cells.__name__: _of_theory(cells) for cells in (theory.settling, theory.bounds, theory.accuracy)}
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


HEAD = """# Benchmarks

```
make reproduce TABLE=all                      # everything, on a GPU if available; resumes
make reproduce TABLE=classification           # one experiment: NAME.json and NAME.md in results/
make reproduce TABLE=classification QUICK=1   # minutes on two cores, to test that everything runs
make reproduce ARGS=--document                # write this page from results/
```

{in_short}

This page compares H3GNN with the tables of *{paper}*, whose figures are quoted as printed. The paper's method
(Prob and Diffi are its two kinds of masks) was searched with a hundred settings per graph, mostly with
narrower tokens and fewer epochs than its appendix has (Table 1). Whether wider tokens would close the gap on
Cora, CiteSeer and PubMed is unknown.
"""

PROTOCOL_WORDS = """## Protocols

- `nested`: {nested}.
- `pooled`: {pooled}.
- `published`: {published}. The setting is the best on test nodes, and each split has its best epoch. The
  paper's released code keeps the best test accuracy over all epochs, so compare its figures with these only.

*The paper's method* is the preset `paper`, one model without smoothing. *H3GNN, untuned* has one setting for
all graphs, its defaults, like the other systems. *H3GNN, tuned* was searched. Figures are test accuracy of a
linear probe in percent, mean ± standard deviation over splits and seeds.
[Selection and leakage](evidence.md) lists what was selected with which figures in view."""


def document(results: Path) -> str:
    """Return the page for the results in a folder; figures are linked as `../results/NAME.png`."""
    stored = read_results(results)
    words = {name: protocol.description for name, protocol in EVERY.items()}
    head = HEAD.format(in_short=_in_short(stored), paper=paper_title())
    parts = [head, PROTOCOL_WORDS.format(**words), _origin(stored)]
    for name, content in stored.items():
        parts.append(markdown_of(content))
        if tables()[name].picture and content["rows"]:
            parts.append(f"![{tables()[name].title}](../results/{name}.png)")
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


def read_results(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the stored results of a folder by name of the table."""
    paths = {name: folder / f"{name}.json" for name in tables()}
    return {name: read_json(path) for name, path in paths.items() if path.is_file()}


def _in_short(stored: dict[str, dict[str, Any]]) -> str:
    """Return what the paper prints, what its method gives here by either rule, and what ours gives."""
    names = [name for name in ("classification", "filtered") if name in stored]
    graphs = [graph for name in names for graph in tables()[name].graphs]
    figures = {key: one for name in names for key, one in figures_of(stored[name]["rows"]).items()}
    prob, untuned, tuned = find_entry("prob"), find_entry("untuned").title, find_entry("tuned").title
    paper = {graph: one for name in names for graph, one in printed(name)[prob.printed].items()}
    rows = {
        "the paper prints (Prob)": [paper.get(graph) for graph in graphs],
        "its method here, chosen on test nodes": [figures.get((prob.title, g, "published")) for g in graphs],
        "its method here, `nested`": [figures.get((prob.title, graph, "nested")) for graph in graphs],
        "ours, untuned, `nested`": [figures.get((untuned, graph, "nested")) for graph in graphs],
        "ours, tuned, `nested`": [figures.get((tuned, graph, "nested")) for graph in graphs],
    }
    if not graphs:
        return ""
    lines = [[title, *map(_mean, row)] for title, row in rows.items()]
    return grid(["test accuracy, %", *map(graph_title, graphs)], lines)


def _mean(figure: MeanStd | None) -> str:
    return NOTHING if figure is None else f"{figure[0]:.2f}"


def _origin(stored: dict[str, dict[str, Any]]) -> str:
    """Say what computed the results."""
    rows = [row for content in stored.values() for row in content["rows"]]
    versions = _different(
        ", ".join(f"{name} {value}" for name, value in row["versions"].items())
        for row in rows
        if "versions" in row
    )
    devices = _different(row["device"] for row in rows if "device" in row)
    if not versions:
        return ""
    return (
        "## Provenance\n\nEvery row in `results/*.json` has graph hash, configuration, seeds, protocol, "
        "versions, device and wall time.\n\n"
        f"- Versions: {'; '.join(versions)}\n- Devices: {'; '.join(devices)}"
    )


def _different(values: Any) -> Sequence[str]:
    return sorted(set(values))
