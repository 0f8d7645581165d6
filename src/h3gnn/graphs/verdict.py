"""One plain sentence on what the figures of a graph mean for this method."""

from __future__ import annotations

HOMOPHILOUS = 0.5
PARTLY = 0.15
INFORMATIVE = 0.05
SMOOTH = 0.92
"""Where the words change. Conventions, not laws: on the paper's nine graphs they tell apart the citation
graphs (adjusted homophily 0.67 to 0.77, centred smoothness 0.84 to 0.89) and the others (0.03 at most, 0.95
at least)."""


def verdict(
    *,
    edges: int,
    smoothness: float | None,
    adjusted_homophily: float | None,
    label_informativeness: float | None,
    mixed_share: float | None,
) -> str:
    """Return the sentence.

    Args:
        edges: edges between different nodes.
        smoothness: of the centred features; None where they are all alike.
        adjusted_homophily, label_informativeness, mixed_share: None where there are no labels.
    """
    if edges == 0:
        return "No edge joins two nodes, so only the features speak and a graph method has nothing to add."
    if adjusted_homophily is None or label_informativeness is None:
        return _without_labels(smoothness)
    mixed = f"{100 * (mixed_share or 0):.0f} % of the nodes have neighbours both in and out of their class"
    figure = f"adjusted homophily {adjusted_homophily:.2f}, label informativeness {label_informativeness:.2f}"
    if adjusted_homophily >= HOMOPHILOUS:
        return (
            f"Neighbours mostly share a class ({figure}), so averaging over neighbours helps and the hop "
            f"tokens can carry most of the embedding; {mixed}."
        )
    if adjusted_homophily >= PARTLY:
        return (
            f"Neighbours share a class more often than chance, but far from always ({figure}): the mixture "
            f"of homophily and heterophily that this method is made for; {mixed}."
        )
    if label_informativeness >= INFORMATIVE:
        return (
            f"Neighbours rarely share a class, yet which classes they have tells something ({figure}), so it "
            f"pays to keep a node's own features apart from its neighbours', as this method does; {mixed}."
        )
    return (
        f"One neighbour's class says almost nothing about a node's own ({figure}), so averaging over "
        f"neighbours alone will not do, and the node's own features have to carry most; {mixed}."
    )


def _without_labels(smoothness: float | None) -> str:
    if smoothness is None:
        return "Without labels, and with features that are all alike, nothing tells what the edges mean."
    if smoothness < SMOOTH:
        return (
            f"There are no labels, but neighbours have similar features (centred smoothness "
            f"{smoothness:.2f}, below 1), as in homophilous graphs, so the hop tokens can carry much of the "
            "embedding."
        )
    return (
        f"There are no labels, and neighbours have features no more alike than others (centred smoothness "
        f"{smoothness:.2f}, about 1), as in heterophilous graphs, so it pays to keep a node's own features "
        "apart from its neighbours', as this method does."
    )
