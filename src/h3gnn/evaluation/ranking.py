"""Rankings of items for users: measures of hidden items, and the choice and blend of scorers by them.

Scorers are chosen and blended by the hidden items of some users, and measured by those of others, fold by
fold of users.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.floating]
Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

CHOSEN_BY = 2
"""The measure that chooses: NDCG of the whole ranking, which has less noise than those of a few items."""
FOLDS = 5
FIRST_STEP, LAST_STEP = 0.5, 0.05
"""How much a weight changes at once, at first and in the end."""


def measure_names(cutoff: int) -> tuple[str, str, str]:
    """Return the names of the measures, in the order of `measure_hidden`."""
    return f"recall@{cutoff}", f"ndcg@{cutoff}", "ndcg"


def measure_hidden(scores: Floats, rows: Integers, items: Integers, cutoff: int) -> Floats:
    """Return recall, NDCG of the recommended items, and NDCG of the whole ranking, `[users, 3]`.

    Each is the expected value if the order among equal scores is random.

    Args:
        scores: `[users, items]`, -inf for items that cannot be recommended.
        rows, items: each hidden item of each user; every user has at least one.
        cutoff: the number of items that are recommended.
    """
    own = scores[rows]
    at = own[np.arange(len(rows)), items][:, None]
    above, equal = (own > at).sum(axis=1), (own == at).sum(axis=1)
    hidden = np.bincount(rows, minlength=len(scores))
    place = np.arange(scores.shape[1])
    found: list[Floats] = []
    for gains in (place < cutoff, (place < cutoff) / np.log2(place + 2), 1 / np.log2(place + 2)):
        total = np.concatenate([[0.0], np.cumsum(gains)])
        gained = np.bincount(rows, (total[above + equal] - total[above]) / equal, minlength=len(scores))
        found.append(gained / (total[hidden] if found else hidden))
    return np.column_stack(found)


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


class Trials:
    """How high scorers rank the hidden items of some users, and the choice and blend of scorers by that.

    Args:
        names: of the scorers, simple ones first; those of one name differ by their settings.
        scores: returns the standardized scores of one of them, `[users, items]`.
        valid: which items can be recommended, `[users, items]`.
        rows, items: each hidden item of each user; every user has at least one.
        cutoff: the number of items that are recommended.
    """

    def __init__(
        self,
        names: Sequence[str],
        scores: Callable[[int], Floats],
        valid: Flags,
        rows: Integers,
        items: Integers,
        cutoff: int,
    ) -> None:
        self.names, self.scores, self.cutoff = names, scores, cutoff
        self.rows, self.items, self.barred = rows, items, np.where(valid, np.float32(0), np.float32(-np.inf))
        self.measures = np.stack([self._measure(scores(at)) for at in range(len(names))], axis=1)

    def _measure(self, scores: Floats, users: Integers | None = None) -> Floats:
        """Return the measures of scores of some users, `[users, 3]`."""
        if users is None:
            return measure_hidden(scores + self.barred, self.rows, self.items, self.cutoff)
        place = np.full(len(self.barred), -1)
        place[users] = np.arange(len(users))
        inside = place[self.rows] >= 0
        rows = place[self.rows[inside]]
        return measure_hidden(scores + self.barred[users], rows, self.items[inside], self.cutoff)

    @cached_property
    def fold(self) -> Integers:
        """The fold of each user."""
        users = len(self.measures)
        return np.random.default_rng(0).permutation(users) % min(FOLDS, users)

    @cached_property
    def without(self) -> list[tuple[dict[str, int], Floats]]:
        """What the users outside of each fold choose."""
        return [self.choose(np.flatnonzero(self.fold != one)) for one in range(self.fold.max() + 1)]

    def choose(self, users: Integers | None = None) -> tuple[dict[str, int], Floats]:
        """Return the best setting of each name by the hidden items of some users, and weights of all scorers.

        One scorer starts: the first that is not worse than the best by more than a standard error. Weights
        change, one at a time, if the NDCG rises by more than two.
        """
        users = np.arange(len(self.measures)) if users is None else users
        own = self.measures[users, :, CHOSEN_BY]
        best: dict[str, int] = {}
        for at, name in enumerate(self.names):
            if name not in best or own[:, at].mean() > own[:, best[name]].mean():
                best[name] = at
        chosen = list(best.values())
        top = max(chosen, key=lambda at: own[:, at].mean())
        start = next(at for at in chosen if not _clear(own[:, top] - own[:, at]))
        weights = np.zeros(len(self.names), np.float32)
        weights[chosen] = self._blend(users, [self.scores(at)[users] for at in chosen], chosen.index(start))
        return best, weights

    def _blend(self, users: Integers, parts: Sequence[Floats], start: int) -> Floats:
        """Return weights of scores, from one alone uphill in the NDCG."""
        weights, scores, step = np.eye(len(parts), dtype=np.float32)[start], parts[start], FIRST_STEP
        value = self._measure(scores, users)[:, CHOSEN_BY]
        while step > LAST_STEP:
            changes = [(at, by) for at in range(len(parts)) for by in (step, -min(step, weights[at])) if by]
            values = [self._measure(scores + by * parts[at], users)[:, CHOSEN_BY] for at, by in changes]
            best = int(np.argmax([one.mean() for one in values]))
            if _clear(values[best] - value, 2):
                (at, by), value = changes[best], values[best]
                weights[at] += by
                scores = scores + by * parts[at]
            else:
                step /= 2
        return np.asarray(weights / weights.sum())

    def by_name(self) -> dict[str, Floats]:
        """Return the measures of each name, `[users, 3]`, with settings that the other folds chose."""
        every = np.arange(len(self.fold))
        return {
            name: self.measures[every, [self.without[fold][0][name] for fold in self.fold]]
            for name in dict.fromkeys(self.names)
        }

    def chosen(self) -> Floats:
        """Return the measures of the blend, `[users, 3]`, with weights that the other folds chose."""
        weights = np.array([weights for _, weights in self.without])[self.fold]
        scores = np.zeros_like(self.barred)
        for at in np.flatnonzero(weights.any(axis=0)).tolist():
            scores += weights[:, at, None] * self.scores(at)
        return self._measure(scores)


def _clear(gain: Floats, errors: float = 1) -> bool:
    """Whether a mean gain is larger than some standard errors."""
    return bool(gain.mean() > max(1e-9, errors * gain.std() / len(gain) ** 0.5))
