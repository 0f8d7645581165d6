"""node2vec (Grover and Leskovec, 2016): vectors of nodes that meet on biased random walks are alike."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from h3gnn.baselines.skipgram import WalkEmbedder, Walker, WalkSettings, edges_to_walk
from h3gnn.baselines.systems import ANY, System
from h3gnn.graphs.graph import Graph


@dataclass(frozen=True)
class Node2VecSettings(WalkSettings):
    """Settings of node2vec; those of the paper, but for Adam in place of plain gradient descent.

    Attributes:
        back: p, large where walks should not turn back.
        away: q, small where walks should go far.
    """

    back: float = 1.0
    away: float = 1.0


class Node2Vec(WalkEmbedder):
    r"""Walks whose next step x depends on where they came from, t, and skip-gram on them.

    .. math:: P(x \mid t, v) \propto w_{vx} \cdot \begin{cases} 1/p & x = t \\ 1 & (t, x) \in E \\
        1/q & \text{else} \end{cases}

    The loss is that of `SkipGram`. With p = q = 1 this is DeepWalk (Perozzi et al., 2014) with negative
    sampling. Features are not looked at.
    """

    def prepare(self, graph: Graph) -> None:
        """Make the edges to walk on."""
        matrix = edges_to_walk(graph, self.device, "node2vec")
        self.walker = Walker(matrix, self.settings.back, self.settings.away)

    def walks(self, starts: Tensor) -> Tensor:
        """Walk along the edges."""
        return self.walker.walks(starts, self.settings.walk_length)


SYSTEM = System(
    name="node2vec",
    title="node2vec",
    estimator="Node2Vec",
    group="clustering",
    paper="Grover and Leskovec: node2vec: Scalable Feature Learning for Networks. KDD",
    year=2016,
    sees=("edges",),
    kind=Node2Vec,
    settings=Node2VecSettings(),
    cost="all pairs of places on one walk from each node, per epoch",
    ranges={
        "back": (1.0, 0.25, 4.0),
        "away": (1.0, 0.25, 4.0),
        "window": (10, 5),
        "learning_rate": (0.005, 0.0025, 0.01),
        "epochs": (20, 5, 50),
    },
    published={ANY: {"epochs": 10}},
    source="the paper's section 4.3: ten walks of 80 from each node, window 10, width 128",
)
