"""What is known about a fitted run, as plain arrays: experiments collect it, reports show it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.floating]
Whole = npt.NDArray[np.integer]

RAW, UNTRAINED, TRAINED = "raw features", "untrained encoder", "H3GNN"
"""The representations that are compared, by name."""

MEMBER_NOTES = {
    "share": "Effective rank: how many dimensions the member's columns of the joined embedding really use, "
    "measured on a sample of the nodes. Share: that rank, divided by the sum of all members' ranks.",
    "loss": "Shaded: the middle half of the nodes. Each member counts in units of its own.",
    "carrier": "The member whose columns alone classify more test nodes of the class right, over all splits, "
    "than any other's, and how many points of accuracy it is ahead of the next best.",
}
"""What a report's numbers about the members of a committee mean."""


def member_representation(name: str) -> str:
    """Return the name under which a member's own columns are compared with the representations."""
    return f"{TRAINED}: {name}"


@dataclass(frozen=True, eq=False)
class Category:
    """A property with few values: the class of a node, its cluster, its split.

    Attributes:
        key: short name, unique on a page.
        title: what a person reads.
        names: what each value stands for.
        values: `[nodes]`, positions in `names`, -1 where unknown.
    """

    key: str
    title: str
    names: tuple[str, ...]
    values: Whole


@dataclass(frozen=True, eq=False)
class Measure:
    """A property with a number: degree, difficulty; `values` is `[nodes]`, NaN where unknown."""

    key: str
    title: str
    values: Floats


@dataclass(frozen=True, eq=False)
class NeighborWeights:
    """Who each node hears in the graph, in compressed rows, and how strongly.

    Attributes:
        crow: where each node's entries begin `[nodes + 1]`.
        sources: the nodes heard `[entries]`.
        weight: the learned weight of each, mean over models.
        start: the weight before training.
        total: how many each node hears `[nodes]`; more than its entries where some were left out.
    """

    crow: Whole
    sources: Whole
    weight: Floats
    start: Floats
    total: Whole


@dataclass(frozen=True)
class EdgeChange:
    """How training changed the weights of one kind of edge, relative to their start."""

    kind: str
    edges: int
    mean_change: float
    turned_down: float


@dataclass(frozen=True, eq=False)
class RepresentationScores:
    """One representation's scores; each array has one value per split (probe) or seed (k-means).

    Attributes:
        probe: test accuracy of the linear probe, None without labels.
        clustering: by name of the measure.
        by_class: test accuracy `[classes]`, NaN where no test node has the class.
        by_homophily: test accuracy `[bins]`.
        secondary: what stands beside accuracy, by the names of `evaluation.measures`.
        precision: of the rare class, at evenly spaced recalls from 0 to 1, mean over splits; None where no
            class is rare.
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
    """Which member of a committee knows a class best.

    Attributes:
        class_name: of the class.
        tested: how many test nodes it has, over all splits.
        members: the best one; several where they are equally good.
        accuracy: of its probe on the class's test nodes, over all splits.
        margin: by how much that is above the next best member's, 0 where several are equally good.
        whole: the accuracy of the joined embedding.
    """

    class_name: str
    tested: int
    members: tuple[str, ...]
    accuracy: float
    margin: float
    whole: float


@dataclass(frozen=True, eq=False)
class Scoreboard:
    """All representations' scores and what the trained one confuses.

    Attributes:
        rows: one for each representation.
        protocol: how the numbers came about, in a sentence.
        confusion: test nodes by class (row) and predicted class (column), over all splits.
        class_names: of the rows and columns.
        class_counts: test nodes of each class, over all splits.
        homophily_bins: borders of the bins of local homophily.
        homophily_counts: test nodes in each bin, over all splits.
        best_members: the best member for each class, of a committee.
        leading: the measure to look at first; other than "accuracy" where one class is rare.
        rare: the name of the class that average precision and recall at k are about.
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
    """The models of a committee that share an objective.

    Attributes:
        name: the objective.
        models: which models they are.
        loss: in the last epoch, mean over the models; NaN without one.
        rank: effective rank of their columns of the joined embedding.
        share: of the joined embedding; `MEMBER_NOTES` says how it is counted.
    """

    name: str
    models: tuple[int, ...]
    loss: float
    rank: float
    share: float


@dataclass(frozen=True, eq=False)
class RunLog:
    """What happened in training, and what the run came from.

    Attributes:
        columns: of the history, each `[epochs, models]`, NaN where not measured.
        collapsed: a sentence if the representation collapsed, else "".
        facts: seconds, memory, device, versions, by name.
        settings: the estimator's arguments.
        provenance: source, hash and notes of the graph.
        members: of a committee; empty where all models have the same objective.
    """

    columns: dict[str, Floats] = field(default_factory=dict)
    collapsed: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    provenance: dict[str, Any] = field(default_factory=dict)
    members: tuple[Member, ...] = ()


@dataclass(frozen=True)
class OtherRun:
    """A run that is compared with the one that a page is about.

    Attributes:
        name: of its representation, among the embeddings and the scores.
        different: the settings that differ, by name, first here and then there.
        notes: what else differs, such as the graph.
    """

    name: str
    different: dict[str, tuple[Any, Any]]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Findings:
    """Everything a report shows; what a run does not have is empty or None.

    Attributes:
        title: of the graph.
        figures: counts of the graph, by name.
        ids: of the nodes, as text.
        embeddings: by name of the representation, `[nodes, dimensions]`.
        categories, measures: what nodes can be coloured by.
        tokens: names of the encoder's tokens.
        attention: `[nodes, tokens]`, rows sum to 1; None without attention.
        nearest: `[nodes, k]`, the nearest nodes in the embedding, the nearest first.
        similarity: their cosine similarity.
        neighbors: the graph's neighbours.
        edge_changes: what training did to edges of each kind.
        shown: "" or a sentence saying which nodes were left out.
        texts: what the user wrote about the nodes, by the name of its column, to be read and searched.
        other: the run beside it, None where there is one run alone.
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

    @property
    def nodes(self) -> int:
        """How many nodes are shown."""
        return len(self.ids)

    def category(self, key: str) -> Category | None:
        """Return the category with this key, if the run has it."""
        return next((one for one in self.categories if one.key == key), None)

    def measure(self, key: str) -> Measure | None:
        """Return the measure with this key, if the run has it."""
        return next((one for one in self.measures if one.key == key), None)
