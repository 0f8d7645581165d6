"""The paper's tables and figures as specifications: graphs, methods, measure, words; and what it prints."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

from h3gnn.experiments.methods import METHODS

PAPER_TITLE = (
    "H³GNNs: Harmonizing Heterophily and Homophily in GNNs via Joint Structural Node Encoding and "
    "Self-Supervised Learning"
)
"""The paper whose tables these are."""
WEBKB = ("cornell", "texas", "wisconsin")
HETEROPHILIC = (*WEBKB, "actor")
CITATION = ("cora", "citeseer", "pubmed")
FILTERED = ("chameleon-filtered", "squirrel-filtered")


@dataclass(frozen=True)
class Entry:
    """A method as a row of a table.

    Attributes:
        title: as our tables call it.
        printed: as the paper's table calls it; None where it is not there.
        changes: arguments of `H3GNN` that differ from the graph's preset.
        baseline: a name in `experiments.methods.METHODS`, for a row that is no preset of ours.
        mapped: the graphs of which a map of the embedding is kept.
    """

    title: str
    printed: str | None = None
    changes: dict[str, Any] = field(default_factory=dict)
    baseline: str = ""
    mapped: tuple[str, ...] = ()


@dataclass(frozen=True)
class Table:
    """One of the paper's tables or figures.

    Attributes:
        name: as `h3gnn reproduce` takes it.
        title: a heading.
        graphs, entries: what is run, every entry on every graph.
        words: the Markdown; `{name}` stands for one of `markdown.BLOCKS`, made from the stored rows.
        kind: of its cells: "fit" (baselines beside it), "efficiency", "convergence" or "statistics".
        rows: how records become stored rows, see `reproduce.ROWS`.
        measure: what is shown: "probe", or a measure of k-means.
        seeds: training runs of a row; None for as many as its graph and preset have usually.
        purpose: which of a graph's presets.
        picture: whether a picture is drawn from the rows.
        beside: rows of the paper's table 1 that the picture shows too.
    """

    name: str
    title: str
    graphs: tuple[str, ...]
    entries: tuple[Entry, ...]
    words: str
    kind: str = "fit"
    rows: str = "scored"
    measure: str = "probe"
    seeds: int | None = None
    purpose: str | None = None
    picture: bool = False
    beside: tuple[str, ...] = ()


DIFFI = Entry("H3GNN Diffi", "H3GNN Diffi", {"mask": "difficulty"})
PROB = Entry("H3GNN Prob", "H3GNN Prob", {"mask": "probability"}, mapped=HETEROPHILIC)
UNTRAINED = Entry("untrained encoder", changes={"epochs": 0})
DECODER = Entry("encoder–decoder", changes={"objective": "decoder", "mask": "random"})
BASELINES = tuple(
    Entry(METHODS[name].title, printed, baseline=name)
    for name, printed in {
        "raw": None,
        "smoothed": None,
        "diffused": None,
        "mlp": "MLP",
        "gcn": "GCN",
        "gat": "GAT",
        "h2gcn": "H2GCN",
        "dgi": "DGI",
        "bgrl": "BGRL",
        "graphmae": "GraphMAE",
    }.items()
)
ABLATION_MODELS = 4
"""Models joined in ablations: with the preset's own sixteen, joining hides what one component does."""


def _ablated(title: str, printed: str | None = None, **changes: Any) -> Entry:
    given = {"n_models": ABLATION_MODELS, "mask": "probability", **changes}
    return Entry(title, printed or title, given)


_COMPARED = """{side_by_side}

The encoder–decoder row rebuilds the features with a decoder on our encoder; the GraphMAE row \
is GraphMAE's objective on our encoder, with the same preset. Where a preset smooths its \
embedding, these rows and the untrained encoder's are smoothed alike; the diffused features \
show what smoothing does without any encoder. Rows without a `published` line were run under \
`validation` only: nothing of theirs is chosen on test nodes.

### What choosing on test nodes adds

{selection}"""

_LISTED = (
    Table(
        "classification",
        "Table 1: node classification",
        (*HETEROPHILIC, *CITATION),
        (DIFFI, PROB, DECODER, UNTRAINED, *BASELINES),
        _COMPARED,
    ),
    Table(
        "efficiency",
        "Table 2: time and memory",
        WEBKB,
        (
            Entry("H3GNN, 1 model", changes={"mask": "probability", "n_models": 1}),
            Entry("H3GNN, {n_models} models at once", changes={"mask": "probability"}),
        ),
        "{efficiency}\n\nOurs: the graph's preset, alone on the machine. Memory is what training adds: on a "
        "GPU the most that tensors held, on a CPU the growth of the process. Total is a whole `fit` with the "
        "preset's number of epochs; the paper's total is the time until its best epoch.",
        kind="efficiency",
        rows="measured",
        seeds=1,
    ),
    Table(
        "ablation",
        "Table 3: ablations",
        WEBKB,
        (
            _ablated("H3GNN (Full)"),
            _ablated("w/o DynMsk", mask="random"),
            _ablated("w/o T-S + DynMsk", mask="random", objective="decoder"),
            _ablated("w/o T-S + DynMsk + Attn", mask="random", objective="decoder", fusion="mlp"),
        ),
        "DynMsk: masks by difficulty (without it, random masks). T-S: the teacher as target (without it, "
        "a decoder that rebuilds the features). Attn: attention over the tokens (without it, an MLP). "
        f"Everything else is the graph's preset, with {ABLATION_MODELS} models joined.\n\n"
        "{side_by_side}\n\n{pairs}",
    ),
    Table(
        "mask-ratio",
        "Table 4: the exploitation ratio",
        WEBKB,
        tuple(
            _ablated(f"r = {ratio:g}", f"{ratio:g}", exploit_ratio=ratio)
            for ratio in (1.0, 0.8, 0.5, 0.2, 0.0)
        ),
        "r is the share of the mask that difficulty decides (`exploit_ratio`); the rest is random. "
        f"Everything else is the graph's preset, with probability masks and {ABLATION_MODELS} models joined."
        "\n\n{side_by_side}",
    ),
    Table(
        "datasets",
        "Table 5: the graphs",
        (*HETEROPHILIC, *CITATION, *FILTERED),
        (Entry("graph"),),
        "{statistics}\n\nEdges are directed and counted as they are loaded, self-loops of the data included; "
        "where both directions are there, both count.",
        kind="statistics",
        rows="measured",
    ),
    Table(
        "clustering",
        "Table 6: node clustering",
        ("texas", "actor", "cornell", "citeseer"),
        (DIFFI, PROB, UNTRAINED, DECODER),
        "k-means with as many clusters as classes on all nodes, the best of ten starts by k-means's own "
        "loss; accuracy under the best matching of clusters and classes, ± over training seeds. Under "
        "`published` the epoch with the best value of each measure is reported, as the released code "
        "does; under `validation` it is the last epoch. The presets were made for k-means by `h3gnn tune "
        "--objective clustering`, whose score is the accuracy of k-means on validation nodes.\n\n"
        "{side_by_side}\n\n### What choosing the epoch by the labels adds\n\n{selection}\n\n"
        "### Other measures, `validation`\n\n{measures}",
        measure="acc",
        seeds=5,
        purpose="clustering",
    ),
    Table(
        "filtered",
        "Table 7: the filtered Wikipedia graphs",
        FILTERED,
        (DIFFI, PROB, DECODER, UNTRAINED, *BASELINES),
        _COMPARED,
    ),
    Table(
        "recent",
        "Table 8: recent methods",
        HETEROPHILIC,
        (DIFFI, PROB),
        "{side_by_side}\n\nOur rows are the runs of table 1; the other rows are what the paper took over "
        "from the methods' own papers.",
    ),
    Table(
        "tsne",
        "Figures: before and after",
        HETEROPHILIC,
        (PROB,),
        "t-SNE of the raw features (above) and of the embedding of H3GNN Prob (below), coloured by class; "
        "the run is the first seed of table 1. Neither map has seen a label. Of Actor, 1,500 nodes are "
        "shown.",
        rows="maps",
        picture=True,
    ),
    Table(
        "radar",
        "Figure: all graphs at one glance",
        (*HETEROPHILIC, *CITATION),
        (
            DIFFI,
            PROB,
            *(e for e in BASELINES if e.baseline in ("smoothed", "diffused", "gcn", "h2gcn", "bgrl")),
        ),
        "Test accuracy on the graphs of table 1. Each axis runs from 5 points below the lowest shown value "
        "to the highest. Solid: ours, `validation`. Dashed: what the paper prints.",
        rows="percent",
        picture=True,
        beside=("MUSE", "GREET", "H3GNN Prob"),
    ),
    Table(
        "convergence",
        "Figure: how fast each objective converges",
        ("texas", "wisconsin", "cora"),
        tuple(
            Entry(title, changes={"objective": objective, "mask": "random", "n_models": 1, "epochs": 120})
            for title, objective in (("teacher–student", "teacher"), ("encoder–decoder", "decoder"))
        ),
        "Accuracy on validation nodes (ridge classifier, mean over splits and seeds, percent) while training "
        "one model with random masks and else the graph's preset; the objective alone differs. Near: 99 % of "
        "the run's own best; – where training never rose above the untrained encoder.\n\n{convergence}",
        kind="convergence",
        rows="measured",
        seeds=3,
        picture=True,
    ),
)
TABLES: dict[str, Table] = {table.name: table for table in _LISTED}
"""All tables by name, in the order of the paper's tables and then its figures."""

MeanStd = tuple[float, float]
"""Mean and standard deviation, in percent."""


@cache
def paper_tables() -> dict[str, Any]:
    """Return what the paper prints in its tables 1 to 8, by name of the table."""
    stored = files("h3gnn.experiments.tables") / "paper.json"
    tables: dict[str, Any] = json.loads(stored.read_text(encoding="utf-8"))
    return tables


def printed(name: str) -> dict[str, dict[str, MeanStd | None]]:
    """Return a table's figures by method and graph; None where the paper has none."""
    table = paper_tables()[name]
    return {
        row["method"]: dict(zip(table["graphs"], map(_pair, row["values"]), strict=True))
        for row in table["rows"]
    }


def _pair(value: Sequence[float] | None) -> MeanStd | None:
    return None if value is None else (value[0], value[1])
