"""The content of a report as plain arrays: `experiments.report_data` collects it, this package draws it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.floating]
Whole = npt.NDArray[np.integer]

RAW, UNTRAINED, TRAINED = "raw features", "untrained encoder", "H3GNN"
"""Names of the compared representations."""

MEMBER_NOTES = {
    "share": "Effective rank: how many dimensions the member's columns of the joined embedding really use, "
    "measured on a sample of the nodes. Share: that rank, divided by the sum of all members' ranks.",
    "loss": "Shaded: the middle half of the nodes. The members' losses have different units.",
    "best_member": "The member whose columns alone classify the most test nodes of the class correctly, over "
    "all splits, and its lead over the next best member in points of accuracy.",
}
"""Explanations of the numbers about the members of a ensemble."""


def member_representation(name: str) -> str:
    """Return the representation name of a member's own columns."""
    return f"{TRAINED}: {name}"


@dataclass(frozen=True, eq=False)
class Category:
    """A categorical property of nodes, such as class, cluster or split.

    `values` are positions in `names`, `[nodes]`, -1 where unknown; `key` is unique on a page.
    """

    key: str
    title: str
    names: tuple[str, ...]
    values: Whole


@dataclass(frozen=True, eq=False)
class Measure:
    """A numeric property of nodes, such as degree or difficulty; `values` is `[nodes]`, NaN where unknown."""

    key: str
    title: str
    values: Floats


@dataclass(frozen=True, eq=False)
class NeighborWeights:
    """The neighbours that each node receives messages from, in compressed rows.

    Node v's `sources` and their learned (mean over models) and initial weights are at `crow[v]:crow[v + 1]`;
    `total` counts all its neighbours, shown or not.
    """

    crow: Whole
    sources: Whole
    weight: Floats
    start: Floats
    total: Whole


@dataclass(frozen=True)
class EdgeChange:
    """Relative change of the weights of one kind of edge in training; `turned_down` is a share."""

    kind: str
    edges: int
    mean_change: float
    turned_down: float


@dataclass(frozen=True, eq=False)
class RepresentationScores:
    """Scores of one representation, with one value per split (probe) or seed (k-means).

    `probe` is the test accuracy of the linear probe, None without labels; `by_class` and `by_homophily` are
    accuracies too, NaN without test nodes. `secondary` has the keys of `evaluation.metrics.TITLES`.
    `precision` is that of the rare class at evenly spaced recalls, mean over splits.
    """

    representation: str
    probe: Floats | None
    clustering: dict[str, Floats]
    by_class: Floats | None = None
    by_homophily: Floats | None = None
    secondary: dict[str, Floats] = field(default_factory=dict)
    precision: Floats | None = None


@dataclass(frozen=True)
class BestMember:
    """The best member of a ensemble for one class, or several equally good ones.

    Over the `tested` nodes of all splits: its `accuracy`, its `margin` over the next best member, and the
    accuracy of the `whole` embedding.
    """

    class_name: str
    tested: int
    members: tuple[str, ...]
    accuracy: float
    margin: float
    whole: float


@dataclass(frozen=True, eq=False)
class Scoreboard:
    """Scores of all representations, and the confusion matrix of the trained one.

    The matrix counts test nodes by class (row) and prediction (column), over all splits; `class_counts` and
    `homophily_counts` count them by class and by bin of local homophily. `leading` is the measure to report
    first, `rare` the class of average precision and recall at k.
    """

    rows: tuple[RepresentationScores, ...]
    protocol: str
    confusion: Whole | None = None
    class_names: tuple[str, ...] = ()
    class_counts: Whole | None = None
    homophily_bins: Floats | None = None
    homophily_counts: Whole | None = None
    best_members: tuple[BestMember, ...] = ()
    leading: str = "accuracy"
    rare: str = ""


@dataclass(frozen=True)
class Member:
    """The models of a ensemble that share an objective.

    `loss` is that of the last epoch, mean over models; `rank` and `share` are explained in `MEMBER_NOTES`.
    """

    name: str
    models: tuple[int, ...]
    loss: float
    rank: float
    share: float


@dataclass(frozen=True, eq=False)
class RunLog:
    """Training history and provenance of a run.

    The columns of the history are `[epochs, models]`, NaN where not measured. `collapsed` is a message if the
    representation collapsed, `facts` has seconds, memory, device and versions, and `members` is empty if all
    models have the same objective.
    """

    columns: dict[str, Floats] = field(default_factory=dict)
    collapsed: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    provenance: dict[str, Any] = field(default_factory=dict)
    members: tuple[Member, ...] = ()


@dataclass(frozen=True)
class OtherRun:
    """Another run for comparison; `different` has the settings that differ, here and there."""

    name: str
    different: dict[str, tuple[Any, Any]]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class TypeFacts:
    """What describes the rows of one type among several linked tables, besides their own columns.

    Attributes:
        type: its name.
        ends: the type at the end of each token's path; the type itself for own features and linked rows.
        relations: links among the rows, and how many there are.
        paths: paths to other types, and the number of columns of the means along each.
        joined: path, column and summaries of the columns that are joined from linked rows.
        notes: what was left out, or read in a way to know.
    """

    type: str
    ends: tuple[str, ...]
    relations: tuple[tuple[str, int], ...] = ()
    paths: tuple[tuple[str, int], ...] = ()
    joined: tuple[tuple[str, str, str], ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Findings:
    """The content of a report; parts that a run does not have are empty or None.

    Attributes:
        figures: statistics of the graph, by name.
        embeddings: by representation, `[nodes, dimensions]`.
        categories, measures: properties that nodes can be coloured by.
        attention: `[nodes, tokens]`, rows sum to 1.
        nearest, similarity: the nearest nodes in the embedding and their cosines, `[nodes, k]`.
        scores: None without labels and clusters.
        shown: "" or a note on which nodes are omitted.
        texts: the user's text columns by name, for display and search.
        other: the run to compare with.
        predictions: the summary of `h3gnn predict`, if it was used with this run.
        names: of the nodes, "" where unknown; () if there are none.
        tables: for a type of several linked tables.
    """

    title: str
    figures: dict[str, int]
    ids: tuple[str, ...]
    embeddings: dict[str, Floats]
    categories: tuple[Category, ...] = ()
    measures: tuple[Measure, ...] = ()
    tokens: tuple[str, ...] = ()
    attention: Floats | None = None
    nearest: Whole | None = None
    similarity: Floats | None = None
    neighbors: NeighborWeights | None = None
    edge_changes: tuple[EdgeChange, ...] = ()
    scores: Scoreboard | None = None
    run: RunLog = field(default_factory=RunLog)
    shown: str = ""
    texts: dict[str, tuple[str, ...]] = field(default_factory=dict)
    other: OtherRun | None = None
    predictions: dict[str, Any] | None = None
    names: tuple[str, ...] = ()
    tables: TypeFacts | None = None

    @property
    def nodes(self) -> int:
        """Number of nodes shown."""
        return len(self.ids)

    def category(self, key: str) -> Category | None:
        """Return the category with this key."""
        return next((one for one in self.categories if one.key == key), None)

    def measure(self, key: str) -> Measure | None:
        """Return the measure with this key."""
        return next((one for one in self.measures if one.key == key), None)
