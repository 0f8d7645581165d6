"""Results that say where they came from, and whether two of them differ."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from h3gnn.evaluation.metrics import TITLES, leading_measure
from h3gnn.evaluation.protocols import EVERY, SplitScores

TEST_TO_TRAIN = 20 / 48
"""Test nodes per training node of a split, for the usual 48/32/20 % splits."""


@dataclass(frozen=True)
class RepeatedScore:
    """One measure for each seed and split, `values[seed][split]`, as shares from 0 to 1."""

    values: list[list[float]]

    @property
    def flat(self) -> npt.NDArray[np.float64]:
        """All values in one row; what could not be measured (NaN) is left out."""
        every = np.array(self.values, dtype=np.float64).ravel()
        return every[~np.isnan(every)]

    @property
    def mean(self) -> float:
        """Mean over seeds and splits."""
        return float(self.flat.mean()) if self.flat.size else float("nan")

    @property
    def std(self) -> float:
        """Standard deviation over all seeds and splits, divided by their number (not one less)."""
        return float(self.flat.std()) if self.flat.size else float("nan")

    @property
    def interval95(self) -> tuple[float, float] | None:
        """The 95 % t interval of the mean, as if all values were drawn independently; None for one value.

        Splits of one graph share nodes, so the true interval is wider: to say that one method is better than
        another, use `paired_test`.
        """
        from scipy.stats import t

        many = self.flat.size
        if many < 2:
            return None
        half = float(t.ppf(0.975, many - 1)) * float(self.flat.std(ddof=1)) / float(np.sqrt(many))
        return self.mean - half, self.mean + half

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, None for what could not be measured."""
        return {
            "test_mean": _plain(self.mean),
            "test_std": _plain(self.std),
            "interval95": None if self.interval95 is None else list(self.interval95),
            "per_split": [[_plain(one) for one in row] for row in self.values],
        }

    @classmethod
    def from_dict(cls, kept: dict[str, Any]) -> RepeatedScore:
        """Read what `as_dict` wrote."""
        rows = kept["per_split"]
        return cls([[float("nan") if one is None else float(one) for one in row] for row in rows])


@dataclass(frozen=True, repr=False)
class Result:
    """How a method does on a graph, and all that this depends on.

    Attributes:
        method: its name.
        graph, sha256: the graph's name and the hash of its content.
        protocol: "validation" or "published".
        epoch_rule: how the training epoch was chosen.
        params: the method's full configuration.
        seeds: of the training runs, in the order of the scores' rows.
        versions: of Python and the libraries.
        origin: the commit that made it, and fingerprints of the code; None in what was stored without.
        device: what it was computed on.
        seconds: wall time of everything, training and evaluation.
        probe, macro_f1, roc_auc: on test nodes; the ROC-AUC for two classes only.
        validation: accuracy of what was chosen on validation nodes.
        chosen: for each seed and split, the epoch and the probe's setting.
        clustering: for each measure its mean, std and values; None where it was not asked for.
        secondary: what stands beside accuracy, by the names of `measures.TITLES`, on test nodes.
        rare: the class that average precision and recall at k are about.
        top: the k of recall at k; None for as many as that class has test nodes.
    """

    method: str
    graph: str
    sha256: str
    protocol: str
    epoch_rule: str
    params: dict[str, Any]
    seeds: list[int]
    versions: dict[str, str]
    origin: dict[str, Any] | None
    device: str
    seconds: float
    probe: RepeatedScore
    macro_f1: RepeatedScore
    roc_auc: RepeatedScore | None
    validation: RepeatedScore
    chosen: list[list[dict[str, Any]]]
    clustering: dict[str, Any] | None = None
    secondary: dict[str, RepeatedScore] = field(default_factory=dict)
    rare: str = ""
    top: int | None = None

    @property
    def leading(self) -> str:
        """The measure to look at first: accuracy, or where one class is rare one that cannot hide it."""
        if (
            not TITLES.keys() - {"accuracy"} <= self.secondary.keys()
        ):  # stored before there were such measures
            return "accuracy"
        name = leading_measure(self.secondary["majority"].mean, 2 if self.roc_auc is not None else 3)
        return "accuracy" if np.isnan(self.score(name).mean) else name

    def score(self, name: str) -> RepeatedScore:
        """Return accuracy, or what stands beside it, by name."""
        return self.probe if name == "accuracy" else self.secondary[name]

    @property
    def description(self) -> str:
        """What the protocol says about these numbers."""
        return EVERY[self.protocol].description

    def __repr__(self) -> str:
        score = self.score(self.leading)
        told = f"{TITLES[self.leading]} {100 * score.mean:.1f} ± {100 * score.std:.1f} %"
        return f"Result({self.method} on {self.graph}: {told})"

    def _repr_html_(self) -> str:
        """Show a notebook every measure, the leading one first, and what the protocol says about them."""
        named = {
            TITLES[name]: self.score(name)
            for name in dict.fromkeys((self.leading, "accuracy", *self.secondary))
        }
        named |= {"macro-F1": self.macro_f1} | ({} if self.roc_auc is None else {"ROC-AUC": self.roc_auc})
        rows = "".join(
            f"<tr><th>{html.escape(name)}</th><td>{100 * one.mean:.1f} ± {100 * one.std:.1f} %</td></tr>"
            for name, one in named.items()
        )
        title = f"<caption>{html.escape(self.method)} on {html.escape(self.graph)}</caption>"
        return f"<table>{title}{rows}</table><p>{html.escape(self.description)}</p>"

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "method": self.method,
            "graph": self.graph,
            "sha256": self.sha256,
            "protocol": self.protocol,
            "protocol_in_words": self.description,
            "epoch_rule": self.epoch_rule,
            "probe": {
                **self.probe.as_dict(),
                "macro_f1": self.macro_f1.as_dict(),
                "roc_auc": None if self.roc_auc is None else self.roc_auc.as_dict(),
                **{name: one.as_dict() for name, one in self.secondary.items()},
                "validation_mean": _plain(self.validation.mean),
                "validation": self.validation.as_dict()["per_split"],
            },
            "leading": self.leading,
            "rare_class": self.rare,
            "k": self.top,
            "clustering": self.clustering,
            "chosen": self.chosen,
            "params": self.params,
            "seeds": self.seeds,
            "versions": self.versions,
            "origin": self.origin,
            "device": self.device,
            "seconds": round(self.seconds, 3),
        }

    @classmethod
    def from_dict(cls, kept: dict[str, Any]) -> Result:
        """Read what `as_dict` wrote."""
        probe = kept["probe"]
        same = ("method", "graph", "sha256", "protocol", "epoch_rule", "params", "seeds", "versions")
        return cls(
            **{name: kept[name] for name in (*same, "device", "seconds", "chosen", "clustering")},
            probe=RepeatedScore.from_dict(probe),
            macro_f1=RepeatedScore.from_dict(probe["macro_f1"]),
            roc_auc=None if probe["roc_auc"] is None else RepeatedScore.from_dict(probe["roc_auc"]),
            validation=RepeatedScore.from_dict({"per_split": probe["validation"]}),
            secondary={name: RepeatedScore.from_dict(probe[name]) for name in TITLES if name in probe},
            rare=kept.get("rare_class", ""),
            top=kept.get("k"),
            origin=kept.get("origin"),
        )


def join_seeds(of_seeds: Sequence[SplitScores]) -> dict[str, Any]:
    """Return the fields of a `Result` that come from scoring, with one row per seed."""
    names = [name for name in of_seeds[0].secondary if all(name in one.secondary for one in of_seeds)]
    aucs = [one.roc_auc for one in of_seeds if one.roc_auc is not None]
    return {
        "probe": RepeatedScore([one.accuracy for one in of_seeds]),
        "macro_f1": RepeatedScore([one.macro_f1 for one in of_seeds]),
        "roc_auc": RepeatedScore(aucs) if len(aucs) == len(of_seeds) else None,
        "validation": RepeatedScore([one.validation for one in of_seeds]),
        "chosen": [one.chosen for one in of_seeds],
        "secondary": {name: RepeatedScore([one.secondary[name] for one in of_seeds]) for name in names},
    }


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


def paired_test(a: RepeatedScore, b: RepeatedScore, *, test_to_train: float = TEST_TO_TRAIN) -> PairedTest:
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


def _plain(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
