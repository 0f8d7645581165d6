"""What a stored measurement of `theory` reads: factors per epoch, epochs, slopes; and tables of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Row = Mapping[str, Any]
"""A stored row: one objective on one graph."""
Cells = tuple[list[str], list[list[str]]]
"""Headings and lines of a table; each line begins with a graph."""

WAYS = {"descent": "gradient descent", "adam": "Adam"}
STATES = ("untrained", "trained")
SMALLEST = 1e-4
"""Below this a curve is too near to its own end, and to the digits that are kept, to tell a slope."""
NEAR = 0.99
"""Converged: at this share of the run's own best validation accuracy."""
NOTHING = "–"


def contraction(epochs: Sequence[float], curve: Sequence[float]) -> float:
    r"""Return the factor per epoch, :math:`\exp` of the slope of the logarithm of a curve.

    Epochs that are close together count less, so that it does not matter where a run was looked at.
    """
    at, values = np.asarray(epochs, dtype=float), np.asarray(curve, dtype=float)
    used = np.isfinite(values) & (values >= SMALLEST)
    if used.sum() < 2:
        return math.nan
    return math.exp(line(at[used], np.log(values[used]), np.gradient(at[used]))[0])


def line(x: Any, y: Any, weight: Any = 1.0) -> tuple[float, float]:
    """Return slope and intercept of the line with the least squared distance."""
    x, y, weight = np.broadcast_arrays(np.asarray(x, float), np.asarray(y, float), np.asarray(weight, float))
    with np.errstate(all="ignore"):
        middle, level = (weight * x).sum() / weight.sum(), (weight * y).sum() / weight.sum()
        slope = (weight * (x - middle) * (y - level)).sum() / (weight * (x - middle) ** 2).sum()
    return float(slope), float(level - slope * middle)


def epochs_until(epochs: Sequence[int], curves: Sequence[Sequence[float]], share: float) -> float:
    """Return the first look at which the mean of some curves is at or under a share; infinite if none is."""
    with np.errstate(all="ignore"):
        middle = np.mean(curves, axis=0)
    return next((float(at) for at, value in zip(epochs, middle, strict=True) if value <= share), math.inf)


def epochs_until_near(row: Row) -> float:
    """Return the first look near the best validation accuracy; infinite where training never rises."""
    curve = np.mean(row["validation"], axis=0)
    if not curve.max() > curve[0]:
        return math.inf
    return next(
        float(at) for at, value in zip(row["epochs"], curve, strict=True) if value >= NEAR * curve.max()
    )


def factor(row: Row, way: str, curve: str) -> float:
    """Return the mean over seeds of the factor per epoch of "distance" or "gap"."""
    return mean([contraction(row["epochs"], one) for one in row[way][curve]])


def growth(row: Row, state: str) -> tuple[float, float]:
    """Return slope and intercept of the error against the shift, means over seeds."""
    found = [
        line(*pair) for pair in zip(row["masks"][state]["shift"], row["masks"][state]["error"], strict=True)
    ]
    return mean([slope for slope, _ in found]), mean([intercept for _, intercept in found])


def of_gradients(row: Row, name: str, over: Callable[..., Any] = np.median) -> float:
    """Return the mean over seeds of what is left of a gradient measure over the looks."""
    return mean(over(row["gradients"][name], axis=1))


def largest_step(row: Row) -> float:
    """Return the largest ratio between two looks that follow one another of the distance, under descent."""
    distance = np.asarray(row["descent"]["distance"], dtype=float)
    with np.errstate(all="ignore"):
        return mean((distance[:, 1:] / distance[:, :-1]).max(axis=1))


def kept_rank(row: Row) -> float:
    """Return the share of its effective rank that the embedding has at the limit, with Adam."""
    rank = np.asarray(row["rank"], dtype=float)
    with np.errstate(all="ignore"):
        return mean(rank[:, -1] / rank[:, 0])


def mean(values: Any) -> float:
    """Return the mean over seeds; of what is not finite, what arithmetic makes of it."""
    with np.errstate(all="ignore"):
        return float(np.mean(np.asarray(values, dtype=float)))


def settling(rows: Sequence[Row]) -> Cells:
    """Return the factors per epoch, and the epochs until a tenth and a hundredth of the start are left."""
    lines = []
    for row, way in ((row, way) for row in rows for way in WAYS):
        by = f"{WAYS[way]}, {row['rate']}" if way == "descent" else WAYS[way]
        told = [row["graph"], row["method"], by]
        for curve in ("distance", "gap"):
            told.append(f"{factor(row, way, curve):.4f}")
            told += [_epochs(epochs_until(row["epochs"], row[way][curve], share)) for share in (0.1, 0.01)]
        lines.append([*told, f"{mean(row[way]['moving']):.2f}"])
    headings = [
        f"{curve}: {words}" for curve in ("distance", "gap") for words in ("factor", "to 1/10", "to 1/100")
    ]
    return ["graph", "objective", "trained by", *headings, "moving"], lines


def bounds(rows: Sequence[Row]) -> Cells:
    """Return how the error grows with the mask before and after training, and how the gradient changes."""
    return [
        "graph", "objective", "untrained: slope", "intercept", "trained: slope", "intercept", "L_E", "L_D",
        "gradient per step", "least convexity", "share of the other's step",
    ], list(_bounds(rows))  # fmt: skip


def _bounds(rows: Sequence[Row]) -> Iterator[list[str]]:
    for row in rows:
        trained = row["masks"]["trained"]
        values = [*growth(row, "untrained"), *growth(row, "trained")]
        values += [mean(trained["encoder"]), mean(trained["decoder"]), of_gradients(row, "smoothness")]
        values += [of_gradients(row, "convexity", np.min), of_gradients(row, "coupling")]
        yield [row["graph"], row["method"], *(f"{value:.3g}" for value in values)]


def accuracy(rows: Sequence[Row]) -> Cells:
    """Return where each objective begins and ends, and the first epoch that is near its best."""
    lines = []
    for row in rows:
        curve = 100 * np.mean(row["validation"], axis=0)
        told = [f"{value:.2f}" for value in (curve[0], curve.max(), curve[-1])]
        lines.append([row["graph"], row["method"], *told, _epochs(epochs_until_near(row))])
    headings = ["at the start", "best", "at the end", "epochs until near"]
    return ["graph", "objective", *headings], lines


def _epochs(value: float) -> str:
    return f"{value:.0f}" if math.isfinite(value) else NOTHING


SETTLED, ALIKE, COLLAPSED = 0.1, 0.1, 0.1
"""Shares: of its way that a settled run still moves, by which equal errors differ, and of its rank that an
embedding keeps at least, unless it has collapsed."""


def alike(one: float, two: float) -> bool:
    """Say whether two sizes differ by no more than a share of the larger."""
    return abs(one - two) <= ALIKE * max(one, two)


@dataclass(frozen=True)
class Claim:
    """One claim of the paper.

    Attributes:
        part: of the theorem that it belongs to.
        words: the claim.
        why: what is to be said about it whatever the numbers are.
        quantity: what is measured, from a row; None where nothing can be.
        holds: whether two such numbers, of teacher–student and encoder–decoder, agree with the claim.
        digits: how the numbers are written.
    """

    part: str
    words: str
    why: str = ""
    quantity: Callable[[Row], float] | None = None
    holds: Callable[[float, float], bool] = lambda teacher, decoder: teacher < decoder
    digits: str = ".3g"

    def sentence(self, pairs: Mapping[str, tuple[Row, Row]]) -> str:
        """Return the claim with its verdict, the figures of each graph and the reason."""
        verdict, told = self.verdict(pairs)
        return " ".join(
            part for part in (f"- {self.part}: {self.words}: **{verdict}**{told}.", self.why) if part
        )

    def verdict(self, pairs: Mapping[str, tuple[Row, Row]]) -> tuple[str, str]:
        """Return "seen", "not seen" or "not testable", and the figures in words."""
        if self.quantity is None:
            return "not testable", ""
        if not pairs:
            return "not measured yet", ""
        found = {graph: (self.quantity(one), self.quantity(two)) for graph, (one, two) in pairs.items()}
        held = sum(self.holds(*both) for both in found.values())
        figures = ", ".join(
            f"{graph} {one:{self.digits}} against {two:{self.digits}}" for graph, (one, two) in found.items()
        )
        return (
            "seen" if held == len(found) else "not seen"
        ), f" on {held} of {len(found)} graphs ({figures})"


CLAIMS = (
    Claim(
        "Assumption",
        "encoder, decoder and student are strongly convex in their parameters",
        "Networks with hidden channels have no unique optimum: exchanging two channels keeps the loss.",
    ),
    Claim(
        "Assumption",
        "what the proof uses along gradient descent: ⟨∇L, Φ − Φ*⟩ / ‖Φ − Φ*‖² stays above 0",
        "The numbers are minima: the theorem's μ.",
        lambda row: of_gradients(row, "convexity", np.min),
        lambda teacher, decoder: min(teacher, decoder) > 0,
    ),
    Claim(
        "Assumption",
        "gradients are Lipschitz and, like the errors, bounded",
        "Any finite run has a maximum; C has that of the gradient's change per step.",
    ),
    Claim(
        "Assumption",
        "the limit of teacher–student is no collapse, measured as the share of the effective rank that "
        f"remains (a collapse: under {COLLAPSED:g})",
        "The loss of constant embeddings is 0, and the proof does not exclude them.",
        kept_rank,
        lambda teacher, decoder: teacher >= COLLAPSED,
        ".2f",
    ),
    Claim(
        "A",
        "there is a limit: in the last quarter of descent the parameters move less than "
        f"{SETTLED:g} of their way",
        "Otherwise the distances below are to an intermediate point.",
        lambda row: mean(row["descent"]["moving"]),
        lambda teacher, decoder: max(teacher, decoder) < SETTLED,
        ".2f",
    ),
    Claim(
        "A",
        "the distance to the limit always shrinks under descent, measured as the largest successive ratio",
        "",
        largest_step,
        lambda teacher, decoder: max(teacher, decoder) < 1,
    ),
    *(
        Claim(
            "A",
            f"teacher–student has the smaller factor per epoch, {words} with {way_words}",
            "",
            lambda row, way=way, curve=curve: factor(row, way, curve),  # type: ignore[misc]
            digits=".4f",
        )
        for way, way_words in WAYS.items()
        for curve, words in (("distance", "of the distance"), ("gap", "of the loss"))
    ),
    Claim(
        "A",
        "1 − μ_E²/β_E² < 1 − min(μ_E², μ_D²)/max(β_E², β_D²)",
        "The proof shows ≤ only, and both sides are upper bounds.",
    ),
    Claim(
        "A",
        "the composition is min(μ_E, μ_D)-strongly convex and max(β_E, β_D)-smooth",
        "False in general: for an encoder a·x and a decoder b·y, (b·a − 1)² is not convex in (a, b). The "
        "inequality derived before has μ/2, the one that is used has μ.",
    ),
    Claim(
        "A",
        "the factors belong to the rates min μ / max β and μ_E/β_E",
        "The printed factor belongs to the rate min μ / max β²; with μ/β it would be 1 − 2μ²/β + μ², no "
        "contraction for β ≥ 2.",
    ),
    Claim(
        "A",
        "the bound holds with momentum α",
        "No formula contains α: the proof treats the teacher as fixed.",
    ),
    Claim(
        "B",
        "‖S(f̄) − T(f)‖ ≤ L_E·δ + ε and ‖D(E(f̄)) − f‖ ≤ L_E·L_D·δ + ε",
        "Both are the triangle inequality.",
    ),
    *(
        Claim(
            "B",
            f"the error of teacher–student grows more slowly with δ, {state}",
            "",
            lambda row, state=state: growth(row, state)[0],  # type: ignore[misc]
        )
        for state in STATES
    ),
    Claim(
        "B",
        f"ε is the same for both “without loss of generality” (within {ALIKE:.0%}), trained, without a mask",
        "They are in different spaces.",
        lambda row: mean([one[0] for one in row["masks"]["trained"]["error"]]),
        alike,
    ),
    Claim(
        "B",
        f"L_E is the same in both bounds (within {ALIKE:.0%}), trained",
        "The encoders are the same, their training is not.",
        lambda row: mean(row["masks"]["trained"]["encoder"]),
        alike,
    ),
    Claim(
        "B",
        "L_D > 1, trained, without which L_E·L_D·δ is the smaller of the two",
        "Teacher–student has no decoder, which counts as 1.",
        lambda row: mean(row["masks"]["trained"]["decoder"]),
        lambda teacher, decoder: decoder > 1,
    ),
    Claim(
        "C",
        "the change of encoder's and decoder's gradient is bounded by both steps",
        "The last term, 4·B_E·B_D·B_Reconst, is a bound alone, and no bound of teacher–student is given to "
        "compare with. One step of the proof uses L_D for ∇D, where the decoder's proof has β_D.",
    ),
    Claim(
        "C",
        "updates are coupled: the decoder causes a larger share of the change of the encoder's gradient than "
        "the teacher does",
        "",
        lambda row: of_gradients(row, "coupling"),
        lambda teacher, decoder: decoder > teacher,
    ),
    Claim(
        "C",
        "updates of teacher–student are more stable: its encoder's gradient changes less per step",
        "The two losses have different units.",
        lambda row: of_gradients(row, "smoothness"),
    ),
    Claim(
        "Consequence",
        "teacher–student needs fewer epochs until its validation accuracy is near its best, with Adam",
        "",
        epochs_until_near,
        digits=".0f",
    ),
)
"""Every claim of the section and of its proofs in the appendix."""


def pairs_of(rows: Sequence[Row], title: Callable[[str], str]) -> dict[str, tuple[Row, Row]]:
    """Return teacher–student and encoder–decoder of each graph that has both."""
    found: dict[str, dict[str, Row]] = {}
    for row in rows:
        found.setdefault(title(row["graph"]), {})[row["params"]["objective"]] = row
    return {
        graph: (both["teacher"], both["features"])
        for graph, both in found.items()
        if both.keys() >= {"teacher", "features"}
    }
