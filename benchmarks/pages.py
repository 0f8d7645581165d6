"""Pages of any size without a fit: findings made up from random numbers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from h3gnn.report.findings import (
    RAW,
    TRAINED,
    UNTRAINED,
    BestMember,
    Category,
    EdgeChange,
    Findings,
    Floats,
    Measure,
    Member,
    NeighborWeights,
    RepresentationScores,
    RunLog,
    Scoreboard,
    TypeFacts,
    member_representation,
)
from h3gnn.report.page import render_page

TOKENS = ("own features, linear", "own features, MLP", "neighbours, hop 1", "neighbours, hop 2")


def made_up_findings(nodes: int, *, classes: int = 5, degree: int = 6, seed: int = 0) -> Findings:
    """Return findings of a random graph in which everything a page can show is there."""
    random = np.random.default_rng(seed)
    labels = random.integers(classes, size=nodes)
    names = tuple(f"class {i}" for i in range(classes))
    predicted = np.where(random.random(nodes) < 0.8, labels, random.integers(classes, size=nodes))
    attention = random.dirichlet([5, 5, 5, 5], size=nodes)
    categories = (
        Category("class", "class", names, labels),
        Category("predicted", "predicted class", names, predicted),
        Category("wrong", "right or wrong", ("right", "wrong"), (predicted != labels).astype(int)),
        Category("cluster", "cluster", names, random.integers(classes, size=nodes)),
        Category("split", "split", ("train", "validation", "test"), random.integers(-1, 3, size=nodes)),
    )
    measures = (
        Measure("homophily", "local homophily", random.random(nodes)),
        Measure("degree", "degree", np.full(nodes, float(degree))),
        Measure("difficulty", "difficulty, last epoch", random.exponential(size=nodes)),
        Measure("attention", "attention to neighbours", attention[:, 2:].sum(axis=1)),
        *(Measure(f"attention_{t}", f"attention: {name}", attention[:, t]) for t, name in enumerate(TOKENS)),
    )
    start = np.full(nodes * degree, 1 / degree)
    return Findings(
        title=f"made up, {nodes} nodes",
        figures={"nodes": nodes, "edges": nodes * degree, "features": 100, "classes": classes},
        ids=tuple(f"node-{i}" for i in range(nodes)),
        embeddings={},
        categories=categories,
        measures=measures,
        tokens=TOKENS,
        attention=attention,
        nearest=random.integers(nodes, size=(nodes, 6)),
        similarity=-np.sort(-random.random((nodes, 6)), axis=1),
        neighbors=NeighborWeights(
            np.arange(nodes + 1) * degree,
            random.integers(nodes, size=nodes * degree),
            start * random.normal(1, 0.05, size=nodes * degree),
            start,
            np.full(nodes, degree),
        ),
        edge_changes=(EdgeChange("all edges", nodes * degree, 0.01, 0.4),),
        scores=_made_up_scores(names, random),
        run=_made_up_run(random),
    )


def made_up_committee(nodes: int, *, seed: int = 0) -> Findings:
    """Return findings in which two models of "teacher" and one of "edges" are side by side."""
    findings, random = made_up_findings(nodes, seed=seed), np.random.default_rng(seed)
    assert findings.scores is not None
    names, rows = findings.scores.class_names, findings.scores.rows
    added = tuple(
        replace(rows[-1], representation=member_representation(one)) for one in ("teacher", "edges")
    )
    carriers = tuple(BestMember(name, 40, ("edges",), 0.8, 0.1, 0.9) for name in names)
    carried = ("all members", "several members", "teacher alone", "edges alone", "no member")
    columns: dict[str, Floats] = {
        name: values * [1.0, 1.1, 0.1] for name, values in findings.run.columns.items()
    }
    columns["teacher_distance"] = np.tile([0.1, 0.2, np.nan], (100, 1))
    members = (Member("teacher", (0, 1), 0.0105, 60.0, 0.6), Member("edges", (2,), 0.001, 40.0, 0.4))
    return replace(
        findings,
        categories=(
            *findings.categories,
            Category("carried", "carried by", carried, random.integers(-1, 5, size=nodes)),
        ),
        scores=replace(findings.scores, rows=(*rows, *added), best_members=carriers),
        run=replace(findings.run, columns=columns, members=members),
        edge_changes=(),
    )


def made_up_tables(nodes: int, *, seed: int = 0) -> Findings:
    """Return findings of loans, described by paths to accounts, orders and clients, without classes."""
    findings, random = made_up_findings(nodes, seed=seed), np.random.default_rng(seed)
    last = "account > client via disposition > account (payments_to_other_banks) > client (the_holder_there)"
    paths = ("account", "order via account", last)
    tokens = (*TOKENS[:2], "same district", *paths)
    facts = TypeFacts(
        "loan",
        ("loan", "loan", "loan", "account", "order", "client"),
        (("same district", 3 * nodes),),
        tuple(zip(paths, (5, 12, 7), strict=True)),
        (("account > district", "inhabitants", "value"),),
        ("district: the column name is left out",),
    )
    return replace(
        findings,
        categories=findings.categories[3:4],  # clusters
        tokens=tokens,
        attention=random.dirichlet([6, 5, 4, 3, 2, 1], size=nodes),
        scores=None,
        names=tuple(f"Loan no. {node}" for node in range(nodes)),
        tables=facts,
    )


def made_up_maps(findings: Findings, seed: int = 0) -> dict[str, np.ndarray]:
    """Return two maps: a blob for each class, and one blob for all."""
    random = np.random.default_rng(seed)
    labels, classes = findings.categories[0].values, len(findings.categories[0].names)
    angle = 2 * np.pi * np.maximum(labels, 0) / classes
    centres = 0.6 * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    blobs = np.clip(centres + random.normal(0, 0.12, size=(findings.nodes, 2)), -1, 1)
    return {"H3GNN embedding": blobs, "Raw features": random.uniform(-1, 1, size=(findings.nodes, 2))}


def made_up_page(nodes: int) -> str:
    """Return a whole page."""
    findings = made_up_findings(nodes)
    return render_page(findings, made_up_maps(findings))


def _made_up_scores(names: tuple[str, ...], random: np.random.Generator) -> Scoreboard:
    rows = tuple(
        RepresentationScores(
            name,
            random.random(10),
            {"accuracy": random.random(3), "NMI": random.random(3)},
            random.random(len(names)),
            random.random(5),
        )
        for name in (RAW, UNTRAINED, TRAINED)
    )
    confusion = random.integers(50, size=(len(names), len(names))) + 200 * np.eye(len(names), dtype=int)
    bins = np.linspace(0, 1, 6)
    return Scoreboard(rows, "Made up.", confusion, names, confusion.sum(axis=1), bins, np.full(5, 100))


def _made_up_run(random: np.random.Generator) -> RunLog:
    columns = {"loss": 1 / np.arange(1, 101)[:, None], "masked": random.integers(50, 60, size=(100, 1)) * 1.0}
    columns["effective_rank"] = np.where(np.arange(100)[:, None] % 5 == 0, 40.0, np.nan)
    for quantile in (0, 25, 50, 75, 100):
        columns[f"difficulty_q{quantile}"] = quantile * columns["loss"]
    return RunLog(
        columns,
        "",
        {"epochs": 100, "seconds": 1.5, "device": "cpu"},
        {"channels": 128},
        {"source": "random", "sha256": "0" * 64, "repairs": []},
    )
