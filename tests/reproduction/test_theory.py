"""Measurements of the theory against values computed by hand, and the verdicts on its claims."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from h3gnn.graphs.graph import Graph
from reproduction import claims, running
from reproduction import claims as readings
from reproduction.cells import Scope, lines_of
from reproduction.figures import draw_theory
from reproduction.markdown import markdown_of
from reproduction.results import measured_rows
from reproduction.specifications import tables
from reproduction.theory import (
    RATIOS,
    Asked,
    Descent,
    LossRoseError,
    descend,
    errors_under_masks,
    source_of,
    walk,
)
from tests.rejects import rejects

QUICK = Scope(quick=True)
PARAMS = QUICK.settings_of("paper", mask="random", objective="teacher", precision="float32", epochs=4)


class Quadratic:
    """½ Σ cᵢ θᵢ² for one model, in the place of an objective; the last coordinate is the decoder's."""

    def __init__(self, curvature: list[float], start: float = 1.0) -> None:
        self.curvature = torch.tensor([curvature])
        self.theta = nn.Parameter(torch.full((1, len(curvature) - 1), start))
        self.other = nn.Parameter(torch.full((1, 1), start))
        self.step = type("Step", (), {"teacher": None, "student": nn.Identity()})()

    @property
    def encoder_parameters(self) -> list[nn.Parameter]:
        return [self.theta]

    @property
    def parameters(self) -> list[nn.Parameter]:
        return [self.theta, self.other]

    @property
    def others(self) -> list[Tensor]:
        return [self.other]

    def place(self) -> Tensor:
        return torch.cat([self.theta, self.other], dim=1).detach()

    def loss(self) -> Tensor:
        theta = torch.cat([self.theta, self.other], dim=1)
        return 0.5 * (self.curvature * theta.square()).sum(dim=1)


def test_contraction_of_a_quadratic() -> None:
    """θ ← (1 − ηc) θ in every coordinate: the distance by 0.9², the gap of the loss too."""
    quadratic: Any = Quadratic([2.0, 2.0])
    descent, looks = Descent(quadratic, rate=0.05), [0, 1, 4, 9, 16, 25]
    found = walk(quadratic, descent.advance, looks, 400, descent.look).settled()
    for curve in ("distance", "gap"):
        assert readings.contraction(looks, found[curve][0]) == pytest.approx(0.81, rel=1e-4)
    assert found["moving"][0] == pytest.approx(0.9**300, abs=1e-6)
    assert readings.epochs_until(looks, found["distance"], 0.1) == 16  # 0.81⁹ is 0.15, 0.81¹⁶ is 0.03
    assert readings.epochs_until(looks, found["distance"], 0.001) == math.inf


def test_the_factor_does_not_depend_on_the_evaluated_epochs() -> None:
    """The first half falls by 0.9 per epoch and the second by 0.5; many looks at one half count once."""
    curve = {epoch: 0.9**epoch if epoch < 6 else 0.9**6 * 0.5 ** (epoch - 6) for epoch in range(13)}
    even = readings.contraction(list(curve), list(curve.values()))
    fine = sorted([*np.linspace(0, 6, 61), *range(7, 13)])
    dense = readings.contraction(
        fine, [float(np.interp(at, list(curve), list(curve.values()))) for at in fine]
    )
    assert dense == pytest.approx(even, abs=0.02)
    assert math.isnan(readings.contraction([0, 1], [1.0, 0.0]))


def test_smoothness_and_convexity_of_a_quadratic() -> None:
    """Curvatures 4 and 1 of the encoder and 3 of the decoder, which is no part of the encoder's gradient."""
    quadratic: Any = Quadratic([4.0, 1.0, 3.0])
    before = quadratic.place()
    descent = Descent(quadratic, rate=0.1)
    descent.look(0)
    # the step is −0.1 · (4, 1, 3), the gradient's change that times (4, 1, 3)
    assert descent.changes["smoothness"][0].item() == pytest.approx(math.sqrt((256 + 1) / (16 + 1)))
    assert descent.changes["coupling"][0].item() == 0
    assert torch.equal(quadratic.place(), before)
    # from the limit at 0 to (1, 1, 1), where the gradient is (4, 1, 3)
    assert descent.measured([before, torch.zeros(1, 3)])["convexity"] == [[pytest.approx(8 / 3)]]


def test_the_largest_stable_learning_rate_is_used() -> None:
    """θ ← (1 − η c) θ falls where η < 2 / c: with c = 3000, 0.0003 is the first of the list."""
    rate, changes, found = descend(lambda: Quadratic([3000.0, 3000.0]), [0, 1], 4)  # type: ignore[return-value, arg-type]
    assert rate == 0.0003
    assert np.shape(changes["smoothness"]) == np.shape(found["gap"]) == (1, 2)
    with pytest.raises(LossRoseError):
        Descent(Quadratic([3000.0, 3000.0]), 0.001).advance(0)  # type: ignore[arg-type]
    with rejects("no-learning-rate"):
        descend(lambda: Quadratic([1e9, 1e9]), [0], 4)  # type: ignore[arg-type, return-value]


def asked_of(graph: Graph, objective: str) -> Asked:
    params = PARAMS | {"objective": objective}
    asked = Asked.begin(params, source_of(graph, params, torch.device("cpu")), [0, 1])
    asked.step.student.eval()
    return asked


def test_both_objectives_share_start_and_mask(small_mixed: Graph) -> None:
    teacher, decoder = (asked_of(small_mixed, one) for one in ("teacher", "features"))
    assert torch.equal(teacher.mask, decoder.mask)
    assert teacher.mask.sum(dim=1).tolist() == [50, 50]
    pairs = zip(teacher.encoder_parameters, decoder.encoder_parameters, strict=True)
    assert all(torch.equal(one, two) for one, two in pairs)
    student, part = teacher.step.student, teacher.batch.part
    weights = teacher.step.student.edges(teacher.batch.factor, teacher.batch.start)
    apart = student(part, weights, teacher.mask) - student(part, weights)  # teacher and student start as one
    assert torch.allclose(teacher.loss(), apart.square().sum(dim=2).mean(dim=1))
    assert decoder.decoder is not None
    rebuilt = decoder.decoder(student(part, weights, teacher.mask)) - small_mixed.dense_features()
    assert torch.allclose(decoder.loss(), rebuilt.square().sum(dim=2).mean(dim=1))
    for one in (teacher, decoder):
        one.step.student.train()
        one.step(one.training.mask_of(2)(0))
    drawn = zip(teacher.step.generators, decoder.step.generators, strict=True)  # so are the masks with Adam
    assert all(torch.equal(one.get_state(), two.get_state()) for one, two in drawn)


def test_measuring_does_not_change_the_run(small_mixed: Graph) -> None:
    for objective in ("teacher", "features"):
        asked = asked_of(small_mixed, objective)
        descent = Descent(asked, 1e-5)
        descent.advance(0)  # then teacher and student differ
        loss, others = asked.loss(), [one.clone() for one in asked.others]
        descent.look(1)
        assert torch.equal(asked.loss(), loss)
        assert all(torch.equal(one, two) for one, two in zip(asked.others, others, strict=True))
        assert (descent.changes["coupling"][0] > 0).all()


def test_the_error_without_a_mask_is_the_approximation_error(small_mixed: Graph) -> None:
    """Teacher and student start as one, so that it is 0; and δ is worked out row by row."""
    asked = asked_of(small_mixed, "teacher")
    found = errors_under_masks(asked)
    assert np.shape(found["shift"]) == np.shape(found["error"]) == (2, len(RATIOS))
    assert [row[0] for row in found["shift"] + found["error"]] == [0, 0, 0, 0]
    assert found["decoder"] == [1, 1]
    features, mask = small_mixed.dense_features(), asked.hide(RATIOS[-1])[1]
    token = asked.step.student.input.mask_token[1]
    by_hand = torch.where(mask[:, None], token, features) - features
    assert found["shift"][1][-1] == pytest.approx((by_hand.norm() / features.norm()).item(), rel=1e-5)


def test_slope_and_intercept_of_a_line() -> None:
    assert readings.line([0, 1, 2], [1, 3, 5]) == pytest.approx((2, 1))
    assert readings.line([0, 1, 5], [0, 1, 100], [1, 1, 0]) == pytest.approx((1, 0))


def row_of(
    graph: str, objective: str, factor: float, *, slope: float, rank: float, best: int
) -> dict[str, Any]:
    """Return a stored row whose distance shrinks by a factor per epoch, and so on."""
    epochs = [0, 1, 2, 4]
    curve = {"distance": [[factor**at for at in epochs]] * 2, "gap": [[factor**at for at in epochs]] * 2}
    masks = {
        "shift": [[0.0, 1.0]] * 2,
        "error": [[0.5, 0.5 + slope]] * 2,
        "encoder": [1.0] * 2,
        "decoder": [slope] * 2,
    }
    way = {**curve, "moving": [factor] * 2}
    validation = [[0.5 + 0.1 * (at >= best) for at in epochs]] * 2
    return {
        "graph": graph,
        "method": objective,
        "params": {"objective": objective},
        "epochs": epochs,
        "rate": "0.001",
        "descent": way,
        "adam": way,
        "gradients": {name: [[slope] * 4] * 2 for name in ("smoothness", "convexity", "coupling")},
        "masks": {"untrained": masks, "trained": masks},
        "rank": [[10.0, rank]] * 2,
        "validation": validation,
    }


FAST: dict[str, Any] = {"factor": 0.05, "slope": 0.5, "rank": 9.0, "best": 1}
SLOW: dict[str, Any] = {"factor": 0.08, "slope": 2.0, "rank": 9.0, "best": 4}


def verdicts(pairs: list[tuple[dict[str, Any], dict[str, Any]]]) -> list[str]:
    rows = []
    for place, (teacher, decoder) in enumerate(pairs):
        rows += [row_of(f"g{place}", "teacher", **teacher), row_of(f"g{place}", "features", **decoder)]
    found = claims.pairs_of(rows, str)
    return [claim.sentence(found) for claim in claims.CLAIMS if claim.quantity is not None]


def test_verdicts_follow_the_numbers() -> None:
    seen, not_seen = verdicts([(FAST, SLOW)]), verdicts([({**SLOW, "rank": 0.5}, FAST)])
    flips = [
        claims.CLAIMS.index(claim)
        for claim, one, two in zip(
            [claim for claim in claims.CLAIMS if claim.quantity is not None], seen, not_seen, strict=True
        )
        if "**seen** on 1 of 1" in one and "**not seen** on 0 of 1" in two
    ]
    told = {claims.CLAIMS[place].words.split(":")[0].split(",")[0] for place in flips}
    assert len(flips) == 11, told
    assert "teacher–student has the smaller factor per epoch" in told
    assert not any(claims.CLAIMS[place].words.startswith("ε is the same") for place in flips)
    assert [claims.alike(1.0, other) for other in (0.91, 0.89, 1.1, 1.2)] == [True, False, True, False]


def test_claims_about_both_objectives_fail_with_either() -> None:
    both = [
        claim for claim in claims.CLAIMS if claim.words.startswith(("what the proof", "there is a limit"))
    ]
    bent, late = {**FAST, "slope": -0.1}, {**FAST, "factor": 0.3}
    for claim, wrong in zip(both, (bent, late), strict=True):
        for pair, expected in (
            ((FAST, SLOW), "seen"),
            ((wrong, SLOW), "not seen"),
            ((SLOW, wrong), "not seen"),
        ):
            rows = [row_of("g", name, **one) for name, one in zip(("teacher", "features"), pair, strict=True)]
            assert claim.verdict(claims.pairs_of(rows, str))[0] == expected


def test_one_graph_of_three_is_counted() -> None:
    factors = [
        one for one in verdicts([(FAST, SLOW), (SLOW, FAST), (SLOW, FAST)]) if "factor per epoch" in one
    ]
    assert len(factors) == 4
    assert all("**not seen** on 1 of 3 graphs (g0 0.0500 against 0.0800" in one for one in factors)
    assert all("**not measured yet**" in one for one in verdicts([]))


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, small_mixed: Graph) -> list[dict[str, Any]]:
    """The rows of a quick look in which the graph is the small built-in one."""
    monkeypatch.setattr(running, "graph_of", lambda name: small_mixed)
    lines = [line for line in lines_of(tables()["convergence"], QUICK) if line.graph == "texas"]
    records = [running.run_cell(line.cells[0], torch.device("cpu")) for line in lines]
    return [row for line, record in zip(lines, records, strict=True) for row in measured_rows(line, [record])]


def test_a_small_graph_from_end_to_end(measured: list[dict[str, Any]]) -> None:
    teacher, decoder = measured
    assert (teacher["method"], decoder["method"]) == ("teacher–student", "encoder–decoder")
    assert teacher["params"]["mask"] == "random"
    for row in measured:
        assert row["epochs"] == [0, 1, 2]
        for way in ("descent", "adam"):
            assert [row[way][curve][0][0] for curve in ("distance", "gap")] == [1, 1]
    assert teacher["validation"][0][0] == decoder["validation"][0][0]
    assert teacher["masks"]["untrained"]["error"][0][0] == 0 < decoder["masks"]["untrained"]["error"][0][0]
    assert teacher["rank"][0][0] == decoder["rank"][0][0]
    content = {"experiment": "convergence", "rows": measured, "quick": True, "missing": []}
    page = markdown_of(content)
    assert sum(line.startswith("- ") for line in page.splitlines()) == len(claims.CLAIMS)
    assert page.count("| Texas | teacher–student |") == 4
    figure = draw_theory(measured)
    assert len(figure.axes) == 5
    assert [len(axis.lines) for axis in figure.axes] == [4, 4, 4, 2, 2]
