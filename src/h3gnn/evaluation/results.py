"""Results with their provenance, and the paired test between two of them."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from h3gnn.evaluation.metrics import IN_UNITS, NUMBER_TITLES, TITLES, leading_measure
from h3gnn.evaluation.protocols import EVERY, SplitScores

TEST_TO_TRAIN = 20 / 48
"""Test nodes per training node of a split, for the usual 48/32/20 % splits."""
SAME = (
    "method", "graph", "sha256", "protocol", "epoch_rule", "params", "seeds", "versions", "device", "chosen",
    "clustering",
)  # fmt: skip
"""Fields of a result that are stored unchanged."""
ALL_TITLES = {**TITLES, **NUMBER_TITLES}
"""Titles of all measures."""


@dataclass(frozen=True)
class RepeatedScore:
    """One measure for each seed and split, `values[seed][split]`, from 0 to 1."""

    values: list[list[float]]

    @property
    def flat(self) -> npt.NDArray[np.float64]:
        """All values that are not NaN."""
        every = np.array(self.values, dtype=np.float64).ravel()
        return every[~np.isnan(every)]

    @property
    def mean(self) -> float:
        """Mean over seeds and splits."""
        return float(self.flat.mean()) if self.flat.size else float("nan")

    @property
    def std(self) -> float:
        """Standard deviation over seeds and splits (`ddof=0`)."""
        return float(self.flat.std()) if self.flat.size else float("nan")

    @property
    def interval95(self) -> tuple[float, float] | None:
        """The 95 % t interval of the mean, assuming independent values; None for one value.

        Splits of one graph share nodes, so the true interval is wider; compare methods with `paired_test`.
        """
        from scipy.stats import t

        count = self.flat.size
        if count < 2:
            return None
        half = float(t.ppf(0.975, count - 1)) * float(self.flat.std(ddof=1)) / float(np.sqrt(count))
        return self.mean - half, self.mean + half

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, None for NaN."""
        return {
            "test_mean": _plain(self.mean),
            "test_std": _plain(self.std),
            "interval95": None if self.interval95 is None else list(self.interval95),
            "per_split": [[_plain(one) for one in row] for row in self.values],
        }

    @classmethod
    def from_dict(cls, kept: dict[str, Any]) -> RepeatedScore:
        """Return the inverse of `as_dict`."""
        rows = kept["per_split"]
        return cls([[float("nan") if one is None else float(one) for one in row] for row in rows])


def formatted(name: str, score: RepeatedScore) -> str:
    """Return mean ± standard deviation of a measure, in per cent or in the unit of the number; or a dash."""
    if not score.flat.size:
        return "–"
    if name in IN_UNITS:
        return f"{score.mean:.4g} ± {score.std:.2g}"
    return f"{100 * score.mean:.1f} ± {100 * score.std:.1f} %"


@dataclass(frozen=True, repr=False)
class Result:
    """The scores of a method on a graph, with everything they depend on.

    Attributes:
        sha256: hash of the graph's content.
        seeds: of the training runs, in the order of the scores' rows.
        origin: commit and fingerprints of the code; None in old files.
        seconds: wall time of training and evaluation.
        probe, macro_f1, roc_auc: on test nodes; accuracy, or R² of numbers, which have no macro-F1 (NaN);
            ROC-AUC for two classes only.
        validation: validation accuracy of the chosen classifiers.
        chosen: epoch and probe setting for each seed and split.
        clustering: mean, std and values of each measure; None if not requested.
        secondary: measures that complement accuracy or R², by the keys of `ALL_TITLES`.
        rare: the class of average precision and recall at k.
        top: the k of recall at k; None for the number of test nodes of that class.
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
        """The measure to report first: R² for numbers, else see `metrics.leading_measure`."""
        if "mae" in self.secondary:
            return "r2"
        if not TITLES.keys() - {"accuracy"} <= self.secondary.keys():  # an old file
            return "accuracy"
        name = leading_measure(self.secondary["majority"].mean, 2 if self.roc_auc is not None else 3)
        return "accuracy" if np.isnan(self.score(name).mean) else name

    def score(self, name: str) -> RepeatedScore:
        """Return accuracy, R² or a secondary measure by name."""
        return self.probe if name in ("accuracy", "r2") else self.secondary[name]

    def shown(self) -> dict[str, str]:
        """Return title and value of every measure, the leading one first."""
        names = [self.leading] if self.leading == "r2" else [self.leading, "accuracy"]
        found = {name: self.score(name) for name in dict.fromkeys((*names, *self.secondary))}
        titled = {ALL_TITLES[name]: formatted(name, one) for name, one in found.items()}
        if self.leading != "r2":
            titled["macro-F1"] = formatted("accuracy", self.macro_f1)
        return titled | ({} if self.roc_auc is None else {"ROC-AUC": formatted("accuracy", self.roc_auc)})

    @property
    def description(self) -> str:
        """Description of the protocol."""
        return EVERY[self.protocol].description

    def __repr__(self) -> str:
        title, shown = next(iter(self.shown().items()))
        return f"Result({self.method} on {self.graph}: {title} {shown})"

    def _repr_html_(self) -> str:
        """Show all measures in a notebook, the leading one first, and the protocol."""
        rows = "".join(
            f"<tr><th>{html.escape(name)}</th><td>{shown}</td></tr>" for name, shown in self.shown().items()
        )
        title = f"<caption>{html.escape(self.method)} on {html.escape(self.graph)}</caption>"
        return f"<table>{title}{rows}</table><p>{html.escape(self.description)}</p>"

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            **{name: getattr(self, name) for name in SAME},
            "protocol_in_words": self.description,
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
            "origin": self.origin,
            "seconds": round(self.seconds, 3),
        }

    @classmethod
    def from_dict(cls, kept: dict[str, Any]) -> Result:
        """Return the inverse of `as_dict`."""
        probe = kept["probe"]
        return cls(
            **{name: kept[name] for name in (*SAME, "seconds")},
            probe=RepeatedScore.from_dict(probe),
            macro_f1=RepeatedScore.from_dict(probe["macro_f1"]),
            roc_auc=None if probe["roc_auc"] is None else RepeatedScore.from_dict(probe["roc_auc"]),
            validation=RepeatedScore.from_dict({"per_split": probe["validation"]}),
            secondary={name: RepeatedScore.from_dict(probe[name]) for name in ALL_TITLES if name in probe},
            rare=kept.get("rare_class", ""),
            top=kept.get("k"),
            origin=kept.get("origin"),
        )


def join_seeds(of_seeds: Sequence[SplitScores]) -> dict[str, Any]:
    """Return the scores of a `Result`, with one row per seed."""
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
    """Mean of a − b, its p-value (1 with fewer than two pairs), and the number of pairs."""

    difference: float
    p_value: float
    n: int

    @property
    def differ(self) -> bool:
        """Whether the difference is significant at the 5 % level."""
        return self.p_value < 0.05


def paired_test(a: RepeatedScore, b: RepeatedScore, *, test_to_train: float = TEST_TO_TRAIN) -> PairedTest:
    r"""Compare two methods on the same splits and seeds by the corrected resampled t test.

    A plain t test of the differences per split is too confident: the splits of one graph overlap. The
    correction (Nadeau and Bengio, 2003) increases the variance of the mean of J differences with sample
    variance s² by the ratio of test to training nodes:

    .. math:: t = \bar d \Big/ \sqrt{\Big(\frac1J + \frac{n_{test}}{n_{train}}\Big) s^2}, \quad J - 1
        \text{ degrees of freedom}

    Seeds of the same split are averaged first, since they share all nodes. With a single split, the seeds are
    compared by a plain paired t test, which says nothing about other splits. A deterministic method may have
    a single seed.
    """
    from scipy.stats import t

    first, second = np.array(a.values, dtype=np.float64), np.array(b.values, dtype=np.float64)
    seeds = {len(first), len(second)} - {1}
    if first.shape[1] != second.shape[1] or len(seeds) > 1:
        raise ValueError(f"scores {first.shape} and {second.shape} do not have the same seeds and splits")
    apart = first - second  # a single seed is broadcast
    one_split = apart.shape[1] == 1
    pairs = apart[:, 0] if one_split else apart.mean(axis=0)
    pairs = pairs[~np.isnan(pairs)].round(12)  # ignore rounding errors
    count, difference = pairs.size, float(pairs.mean()) if pairs.size else float("nan")
    if count < 2:
        return PairedTest(difference, 1.0, count)
    variance = float(pairs.var(ddof=1)) * (1 / count + (0.0 if one_split else test_to_train))
    if variance == 0:
        return PairedTest(difference, 1.0 if difference == 0 else 0.0, count)
    p_value = 2 * float(t.sf(abs(difference) / np.sqrt(variance), count - 1))
    return PairedTest(difference, p_value, count)


def _plain(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
