"""The members of a committee: the models of one objective, seen as one representation among the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.stats import rankdata

from h3gnn.estimator import H3GNN
from h3gnn.experiments.scoring import Splits
from h3gnn.report.findings import (
    TRAINED,
    Carrier,
    Category,
    Floats,
    Measure,
    Member,
    Scoreboard,
    member_representation,
)
from h3gnn.training.history import effective_rank, sample_rows

WORDS = f" {member_representation('…')} is the columns of that member alone."


def models_of_members(model: H3GNN) -> dict[str, list[int]]:
    """Return which models each member of a committee has; empty where all models have one objective."""
    names = list(dict.fromkeys(model.members_))
    if len(names) < 2:
        return {}
    return {name: [at for at, one in enumerate(model.members_) if one == name] for name in names}


def member_columns(model: H3GNN) -> dict[str, Floats]:
    """Return each member's own columns of the joined embedding, `[nodes, its models · D]`."""
    by_model = model.embedding_.reshape(len(model.embedding_), model.n_models, -1)
    return {
        name: by_model[:, models].reshape(len(by_model), -1)
        for name, models in models_of_members(model).items()
    }


def describe_members(model: H3GNN) -> tuple[Member, ...]:
    """Return each member's last loss, the rank of its columns, and its share of the joined embedding."""
    columns, history = member_columns(model), model.history_
    some = sample_rows(len(model.embedding_))
    ranks = {name: float(effective_rank(torch.from_numpy(columns[name])[some][None])) for name in columns}
    total = sum(ranks.values())
    return tuple(
        Member(
            name=name,
            models=tuple(models),
            loss=float(history["loss"][-1, models].mean()) if len(history) else float("nan"),
            rank=ranks[name],
            share=ranks[name] / total,
        )
        for name, models in models_of_members(model).items()
    )


def member_difficulty(model: H3GNN) -> tuple[Measure, ...]:
    """Return how hard each node is for each member: the percentage of nodes that are no harder for it.

    A percentile, since members count their losses in units of their own. First the mean over the members.
    """
    difficulty = model.history_.difficulty
    assert difficulty is not None
    of = {
        name: 100 * rankdata(difficulty[models].float().mean(dim=0).numpy(), "max") / difficulty.shape[1]
        for name, models in models_of_members(model).items()
    }
    whole = Measure("difficulty", "difficulty, mean percentile", np.mean(list(of.values()), axis=0))
    each = (Measure(f"difficulty_{name}", f"difficulty for {name}, percentile", of[name]) for name in of)
    return (whole, *each)


def carried_by(predicted: Mapping[str, npt.NDArray[np.int64]], splits: Splits) -> Category:
    """Return which members classify each node right; -1 for a node that is never tested.

    A member does when its probe is right in more than half of the splits that test the node.

    Args:
        predicted: by each member's probes, `[splits, nodes]`.
        splits: which nodes are tested in each.
    """
    tested, labels = splits.tested, splits.labels.numpy()
    times = tested.sum(axis=0)
    right = np.stack([2 * ((one == labels) & tested).sum(axis=0) > times for one in predicted.values()])
    # with two before them, members have the colours on a map that they have in the charts
    names = ("all members", "several members", *(f"{name} alone" for name in predicted), "no member")
    count = right.sum(axis=0)
    cases = [count == len(right), count == 1, count == 0]
    values = np.select(cases, [0, 2 + right.argmax(axis=0), len(names) - 1], default=1)
    return Category("carried", "carried by", names, np.where(times > 0, values, -1))


def class_carriers(scores: Scoreboard, members: Sequence[str]) -> tuple[Carrier, ...]:
    """Return the best member for each class that is tested, and how far it is ahead of the next one."""
    by_class = {row.representation: row.by_class for row in scores.rows}
    accuracy = np.stack([_known(by_class[member_representation(name)]) for name in members])
    whole, tested, carriers = _known(by_class[TRAINED]), _known(scores.class_counts), []
    for place in np.flatnonzero(tested):
        mine = accuracy[:, place]
        next_best, best = np.sort(mine)[-2:].tolist()
        carriers.append(
            Carrier(
                class_name=scores.class_names[place],
                tested=int(tested[place]),
                members=tuple(name for name, one in zip(members, mine, strict=True) if one == best),
                accuracy=best,
                ahead=best - next_best,
                whole=float(whole[place]),
            )
        )
    return tuple(carriers)


def _known(values: npt.NDArray[Any] | None) -> npt.NDArray[Any]:
    assert values is not None
    return values
