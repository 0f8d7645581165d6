"""Nested cross-validation of a pool of heads.

For each pair of folds, every head is trained without both, and for each fold without it. So the pool that
predicts a fold is chosen by predictions from models that saw neither that fold nor the node predicted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from h3gnn.evaluation.heads import Floats, Head, Integers, Pool, Target


@dataclass(frozen=True, eq=False)
class Fold:
    """The pooled predictions of one fold, and those by which its pool was chosen.

    Attributes:
        held_out: positions of the fold among the labelled nodes.
        predicted: for them `[nodes, outputs]`.
        seen: positions of the other labelled nodes.
        chosen_by: the pool's held-out predictions for these, `[nodes, outputs]`.
    """

    held_out: Integers
    predicted: Floats
    seen: Integers
    chosen_by: Floats


class FoldPredictions:
    """The predictions of heads for every fold, from models without it, and without it and another.

    Args:
        heads: of the same labelled nodes.
        folds: the positions of each fold.
        progress: receives the share of the heads that are done.
    """

    def __init__(
        self,
        heads: Sequence[Head],
        folds: Sequence[Integers],
        progress: Callable[[float], None] = lambda share: None,
    ) -> None:
        self.folds, self.size = list(folds), sum(map(len, folds))
        pairs = list(combinations(range(len(folds)), 2))
        left_out = [folds[at] for at in range(len(folds))]
        left_out += [np.concatenate([folds[one], folds[other]]) for one, other in pairs]
        everyone = np.arange(self.size)
        trains = [np.setdiff1d(everyone, one) for one in left_out]
        self.single: list[Floats] = []
        self.pairs: list[dict[tuple[int, int], Floats]] = []
        """For each head, by fold that is left out and fold that is predicted."""
        for number, head in enumerate(heads):
            found = head.held_out(trains, left_out)
            shape = len(found[0]), self.size, found[0].shape[2]
            single = np.empty(shape)
            for fold, predicted in zip(folds, found, strict=False):
                single[:, fold] = predicted
            self.single.append(single)
            of_pairs = {}
            for (one, other), predicted in zip(pairs, found[len(folds) :], strict=True):
                of_pairs[other, one] = predicted[:, : len(folds[one])]
                of_pairs[one, other] = predicted[:, len(folds[one]) :]
            self.pairs.append(of_pairs)
            progress((number + 1) / len(heads))

    def nested(self, target: Target, heads: Sequence[int]) -> Iterator[Fold]:
        """Yield the predictions of a pool of some heads, fold by fold."""
        for fold, held_out in enumerate(self.folds):
            others = [one for one in range(len(self.folds)) if one != fold]
            seen = np.concatenate([self.folds[one] for one in others])
            inner = [
                np.concatenate([self.pairs[head][fold, other] for other in others], axis=1) for head in heads
            ]
            pool = Pool.fit(inner, target.of(seen))
            outer = pool.select([self.single[head][:, held_out] for head in heads])
            yield Fold(held_out, pool(outer), seen, pool(pool.select(inner)))

    def pool(self, target: Target, heads: Sequence[int]) -> Pool:
        """Return the pool of some heads chosen by all folds."""
        return Pool.fit([self.single[head] for head in heads], target)
