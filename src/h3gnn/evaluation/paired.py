"""Whether two methods differ on a graph, or only seem to."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from h3gnn.evaluation.results import Scores

TEST_TO_TRAIN = 20 / 48
"""Test nodes per training node of a split, for the usual 48/32/20 % splits."""


@dataclass(frozen=True)
class PairedTest:
    """The mean of a − b, how likely one so far from 0 is if there is no difference, and from how many pairs.

    With fewer than two pairs nothing can be said, and the p-value is 1.
    """

    difference: float
    p_value: float
    n: int

    @property
    def differ(self) -> bool:
        """Whether the difference is more than chance, at the 5 % level."""
        return self.p_value < 0.05


def paired_test(a: Scores, b: Scores, *, test_to_train: float = TEST_TO_TRAIN) -> PairedTest:
    r"""Compare two methods that were scored on the same splits and seeds.

    Both methods meet the same easy and hard splits, so what counts is the difference on each split. A plain
    t test of these would be far too sure: the splits of one graph are drawn from the same nodes, their
    training and test sets overlap, and ten of them hold much less than ten independent experiments. The
    corrected resampled t test (Nadeau and Bengio, 2003) widens the variance of the mean of J differences
    with sample variance s² by the share of test to training nodes:

    .. math:: t = \bar d \Big/ \sqrt{\Big(\frac1J + \frac{n_{test}}{n_{train}}\Big) s^2}, \quad J - 1
        \text{ degrees of freedom}

    Seeds of the same split are averaged first, since they share all nodes. Where there is one split only,
    the seeds are compared with a plain paired t test: it speaks of this split, not of the graph.

    Args:
        a, b: scores with the same numbers of splits, and of seeds (or one seed, for a method without chance).
        test_to_train: n_test / n_train of a split.
    """
    from scipy.stats import t

    first, second = np.array(a.values, dtype=np.float64), np.array(b.values, dtype=np.float64)
    seeds = {len(first), len(second)} - {1}
    if first.shape[1] != second.shape[1] or len(seeds) > 1:
        raise ValueError(f"scores {first.shape} and {second.shape} are not of the same seeds and splits")
    apart = first - second  # a single seed meets each of the other's
    one_split = apart.shape[1] == 1
    pairs = apart[:, 0] if one_split else apart.mean(axis=0)
    pairs = pairs[~np.isnan(pairs)].round(12)  # rounding errors are no difference
    many, difference = pairs.size, float(pairs.mean()) if pairs.size else float("nan")
    if many < 2:
        return PairedTest(difference, 1.0, many)
    variance = float(pairs.var(ddof=1)) * (1 / many + (0.0 if one_split else test_to_train))
    if variance == 0:
        return PairedTest(difference, 1.0 if difference == 0 else 0.0, many)
    p_value = 2 * float(t.sf(abs(difference) / np.sqrt(variance), many - 1))
    return PairedTest(difference, p_value, many)
