"""Rankings of items for users: measures of hidden items, and the choice and blend of scorers by them.

Scorers are chosen and blended by the hidden items of some users, and measured by those of others, fold by
fold of users.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.floating]
Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

CHOSEN_BY = 2
"""The measure that chooses: NDCG of the whole ranking, which has less noise than recall."""
FOLDS = 5
FIRST_STEP, LAST_STEP = 0.5, 0.05
"""How much a weight changes at once, at first and in the end."""


def measure_names(cutoff: int) -> tuple[str, str, str]:
    """Return the names of the measures, in the order of `measure_hidden`."""
    return f"recall@{cutoff}", "mrr", "ndcg"


def measure_hidden(scores: Floats, rows: Integers, items: Integers, cutoff: int) -> Floats:
    """Return recall, reciprocal rank of the first hidden item, and NDCG of each user, `[users, 3]`.

    Among equal scores the order is random: recall is its expected value, and ranks are the expected ranks.

    Args:
        scores: `[users, items]`, -inf for items that cannot be recommended.
        rows, items: each hidden item of each user; every user has at least one.
        cutoff: the number of items that are recommended.
    """
    own = scores[rows]
    at = own[np.arange(len(rows)), items][:, None]
    above, equal = (own > at).sum(axis=1), (own == at).sum(axis=1)
    found = np.clip((cutoff - above) / equal, 0, 1)
    rank = 1 + above + (equal - 1) / 2
    users = len(scores)
    hidden = np.bincount(rows, minlength=users)
    first = np.full(users, np.inf)
    np.minimum.at(first, rows, rank)
    best = np.concatenate([[0.0], np.cumsum(1 / np.log2(np.arange(2, hidden.max() + 2)))])
    gained = np.bincount(rows, 1 / np.log2(1 + rank), minlength=users)
    recall = np.bincount(rows, found, minlength=users) / hidden
    return np.column_stack([recall, 1 / first, gained / best[hidden]])


def standardize(scores: Floats, valid: Flags) -> Floats:
    """Return scores with mean 0 and standard deviation 1 over the valid items of each user.

    A user whose valid items are all equal gets zeros.
    """
    count = np.maximum(valid.sum(axis=1, keepdims=True), 1)
    mean = np.where(valid, scores, 0).sum(axis=1, keepdims=True) / count
    apart = np.where(valid, scores - mean, 0)
    spread = np.sqrt((apart**2).sum(axis=1, keepdims=True) / count)
    least = 1e-6 * np.maximum(np.abs(mean), 1e-12)
    return np.asarray(apart / np.where(spread > least, spread, np.inf), dtype=np.float32)


@dataclass(frozen=True, eq=False)
class Rivals:
    """Standardized scores of hidden items, and of those items that are most likely to rank above them.

    Attributes:
        rows: for each hidden item its user.
        hidden: scores of the hidden items, `[hidden, scorers]`.
        others: scores of other items of each user, `[users, others, scorers]`.
        usable: which of these count.
    """

    rows: Integers
    hidden: Floats
    others: Floats
    usable: Flags

    def weights(self, users: Integers, scorers: Integers, start: int) -> Floats:
        """Return weights of some scorers, from `start` alone uphill in the NDCG of users' hidden items.

        Each step changes one weight, and is made if the NDCG rises by more than its standard error, so that
        a scorer stays alone unless a blend is clearly better.
        """
        place = np.full(len(self.others), -1)
        place[users] = np.arange(len(users))
        rows = place[self.rows]
        hidden, rows = self.hidden[rows >= 0][:, scorers], rows[rows >= 0]
        others = np.where(self.usable[users][:, :, None], self.others[users][:, :, scorers], 0)
        missing = np.where(self.usable[users], 0, np.inf).astype(np.float32)
        share = 1 / np.bincount(rows)[rows]

        def gained(weights: Floats) -> Floats:
            above = (others @ weights - missing)[rows]
            own = (hidden @ weights)[:, None]
            rank = 1 + (above > own).sum(axis=1) + (above == own).sum(axis=1) / 2
            return np.bincount(rows, share / np.log2(1 + rank))

        unit = np.eye(len(scorers), dtype=np.float32)
        found, step = unit[start], FIRST_STEP
        value = gained(found)
        while step > LAST_STEP:
            tried = [np.maximum(found + sign * step * one, 0) for one in unit for sign in (1, -1)]
            tried = [one / one.sum() for one in tried if one.any()]
            values = [gained(one) for one in tried]
            best = int(np.argmax([one.mean() for one in values]))
            gain = values[best] - value
            if gain.mean() > max(1e-9, gain.std() / len(gain) ** 0.5):
                found, value = tried[best], values[best]
            else:
                step /= 2
        return found


@dataclass(frozen=True, eq=False)
class Choice:
    """What some users decide: by name the best setting, and the weights of all scorers."""

    of_name: dict[str, int]
    weights: Floats


class Chooser:
    """Chooses by some users: among settings of the same name, and weights of the chosen ones.

    Args:
        names: of the scorers; those of one name differ by their settings.
        measured: `[users, scorers, 3]`, from `measure_hidden`.
        rivals: of the same users and scorers.
    """

    def __init__(self, names: Sequence[str], measured: Floats, rivals: Rivals) -> None:
        self.names, self.measured, self.rivals = list(names), measured, rivals
        users = len(measured)
        self.fold = np.random.default_rng(0).permutation(users) % min(FOLDS, users)
        self.without = [self.choose(self.fold != fold) for fold in range(min(FOLDS, users))]

    def choose(self, users: Flags) -> Choice:
        """Return the choice by some users."""
        score = self.measured[users, :, CHOSEN_BY].mean(axis=0)
        of_name: dict[str, int] = {}
        for at, name in enumerate(self.names):
            if name not in of_name or score[at] > score[of_name[name]]:
                of_name[name] = at
        chosen = np.array(list(of_name.values()))
        weights = np.zeros(len(self.names), np.float32)
        start = int(score[chosen].argmax())
        weights[chosen] = self.rivals.weights(np.flatnonzero(users), chosen, start)
        return Choice(of_name, weights)

    def by_name(self) -> dict[str, Floats]:
        """Return the measures of each name, `[users, 3]`, with settings chosen by other folds."""
        every = np.arange(len(self.fold))
        return {
            name: self.measured[every, [self.without[fold].of_name[name] for fold in self.fold]]
            for name in dict.fromkeys(self.names)
        }
