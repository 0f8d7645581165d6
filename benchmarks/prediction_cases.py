"""The tables and graphs of `python -m benchmarks.predictions`, with the truth that no method is given."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import scipy.sparse as sp

from h3gnn.graphs.checks import check_graph
from h3gnn.graphs.datasets import load
from h3gnn.graphs.graph import Graph
from h3gnn.tables.read import read_graph

EXAMPLES = Path(__file__).parent.parent / "examples"
Values = npt.NDArray[Any]
Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Problem:
    """A graph without labels, and the truth about its nodes.

    Attributes:
        graph: the input of every method.
        truth: classes 0, 1, …, or numbers; -1 or NaN where nothing is known.
        classes: names of the classes; none for numbers.
        joined: for H3GNN, the last so many nodes join the fitted graph; they alone are scored.
        new: the files of the nodes that join, and of their edges.
    """

    graph: Graph
    truth: Values
    classes: tuple[str, ...] = ()
    joined: int = 0
    new: tuple[Path, Path] | None = None

    @property
    def known(self) -> Integers:
        """The nodes with a truth that may be labelled."""
        found = self.truth >= 0 if self.classes else ~np.isnan(self.truth)
        found[len(found) - self.joined :] = False
        return np.flatnonzero(found)


@dataclass(frozen=True)
class Case:
    """A data set, how it is scored, and how many nodes are labelled.

    Attributes:
        measure: "average precision" (of the rarer class), "accuracy" or "R²".
        labelled: a share of each class, or a number of nodes by class name.
        make: builds the problem from the folder of raw data and a folder to write to.
    """

    name: str
    title: str
    measure: str
    labelled: float | Mapping[str, int]
    make: Callable[[Path, Path, bool], Problem]


LEAST = 4
"""Labelled nodes of a class that a draw takes, as far as half of the class allows."""


def draw(case: Case, problem: Problem, seed: int) -> Integers:
    """Return the nodes that are labelled, sorted; of each class its share."""
    rng, known = np.random.default_rng(seed), problem.known
    if not problem.classes:
        assert isinstance(case.labelled, float)
        return np.sort(rng.permutation(known)[: round(case.labelled * len(known))])
    chosen = []
    for at, name in enumerate(problem.classes):
        members = rng.permutation(known[problem.truth[known] == at])
        if isinstance(case.labelled, Mapping):
            count = min(case.labelled[name], len(members) // 2)
        else:
            count = max(round(case.labelled * len(members)), min(LEAST, len(members) // 2))
        chosen.append(members[:count])
    return np.sort(np.concatenate(chosen))


def _example(name: str, edges: str, features: str, label: str) -> Callable[[Path, Path, bool], Problem]:
    """Return a worked case of docs/cases.md, at its size."""

    def make(data: Path, folder: Path, quick: bool) -> Problem:
        tables = _made(name, folder, quick)
        graph = read_graph(tables / edges, features=tables / features, label_column=label)
        return _with_truth(graph, tables / "truth.csv")

    return make


def _made(name: str, folder: Path, quick: bool) -> Path:
    tables = folder / f"{name}-{quick}"
    if not (tables / "truth.csv").is_file():
        unit = {"fraud": "accounts"}.get(name, name)
        small = [f"--{unit}", "300"] if quick else []
        command = [sys.executable, str(EXAMPLES / f"make_{name}.py"), "--out", str(tables), *small]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return tables


def _with_truth(graph: Graph, path: Path) -> Problem:
    truth = pd.read_csv(path, dtype=str)
    found = truth.set_index(truth.columns[0])[truth.columns[1]].reindex(graph.node_ids)
    codes, names = pd.factorize(found, sort=True)
    return Problem(unlabelled(graph), codes, tuple(names))


def unlabelled(graph: Graph) -> Graph:
    """Return the graph without labels and splits."""
    return replace(graph, labels=None, class_names=(), train_mask=None, val_mask=None, test_mask=None)


def _new_accounts(data: Path, folder: Path, quick: bool) -> Problem:
    """The accounts that join afterwards; the other methods get one table of all accounts."""
    tables = _made("fraud", folder, quick)
    for known, new in (("accounts", "new-accounts"), ("transactions", "new-transactions")):
        both = [pd.read_csv(tables / f"{name}.csv", dtype=str) for name in (known, new)]
        pd.concat(both).to_csv(tables / f"all-{known}.csv", index=False)
    graph = read_graph(
        tables / "all-transactions.csv", features=tables / "all-accounts.csv", label_column="is_fraud"
    )
    joined = len(pd.read_csv(tables / "new-accounts.csv"))
    files = tables / "new-accounts.csv", tables / "new-transactions.csv"
    return replace(_with_truth(graph, tables / "truth.csv"), joined=joined, new=files)


def _words(folder: Path, stem: str, ids: str, label: str) -> Problem:
    """A graph of the MUSAE collection: lists of items in JSON, a table of classes, a table of edges."""
    table = pd.read_csv(folder / f"{stem}_target.csv").sort_values(ids)
    items = json.loads((folder / f"{stem}_features.json").read_text(encoding="utf-8"))
    pairs = np.array([(int(node), item) for node, some in items.items() for item in set(some)])
    _, columns = np.unique(pairs[:, 1], return_inverse=True)
    words = sp.csr_array((np.ones(len(pairs), dtype=np.float32), (pairs[:, 0], columns)))
    edges = pd.read_csv(folder / f"{stem}_edges.csv").to_numpy().T
    graph = check_graph(words, np.concatenate([edges, edges[::-1]], axis=1), source=stem)
    codes, names = pd.factorize(table[label].astype(str), sort=True)
    return Problem(graph, codes, tuple(names))


def _twitch(data: Path, folder: Path, quick: bool) -> Problem:
    return _words(_given(data / "tables" / "twitch"), "DE", "new_id", "mature")


def _facebook(data: Path, folder: Path, quick: bool) -> Problem:
    return _words(_given(data / "tables" / "facebook_pages"), "facebook", "id", "page_type")


def _given(path: Path) -> Path:
    if not path.exists():
        raise FileNotFoundError(path)
    return path


def _bitcoin(data: Path, folder: Path, quick: bool) -> Problem:
    """Ratings among users of Bitcoin-OTC; 180 are known as fraudulent and 136 as benign."""
    tables = _given(data / "tables" / "bitcoin_otc")
    graph = read_graph(tables / "soc-sign-bitcoinotc.csv")
    known = pd.read_csv(tables / "otc_gt.csv", names=["id", "sign"]).set_index("id")["sign"]
    signs = known.reindex(graph.node_ids).to_numpy()
    truth = np.select([signs > 0, signs < 0], [0, 1], -1)
    return Problem(graph, truth, ("benign", "fraud"))


def _berka(data: Path, folder: Path, quick: bool) -> Problem:
    """Accounts of a bank with owner, district, card and loan, and standing orders to accounts elsewhere."""
    tables = _given(data / "tables" / "berka_bank")
    read = {path.stem: pd.read_csv(path, sep=";") for path in sorted(tables.glob("*.csv"))}
    owners = read["disp"][read["disp"]["type"] == "OWNER"].merge(read["client"], on="client_id")
    owners = owners.merge(read["card"][["disp_id", "type"]], on="disp_id", how="left", suffixes=("", "_card"))
    born = owners["birth_number"].astype(str).str.zfill(6)
    month = born.str[2:4].astype(int)
    owners["birth_year"], owners["woman"] = 1900 + born.str[:2].astype(int), (month > 50).astype(int)
    accounts = read["account"].merge(owners[["account_id", "birth_year", "woman", "type_card"]])
    district = read["district"].rename(columns={"A1": "district_id"}).drop(columns="A2")
    accounts = accounts.merge(district, on="district_id", how="left").replace("?", np.nan)
    loans = read["loan"][["account_id", "date", "amount", "duration", "payments"]]
    loans = loans.rename(columns={name: f"loan_{name}" for name in loans.columns[1:]})
    accounts = accounts.merge(loans, on="account_id", how="left")
    for name in ("date", "loan_date"):
        accounts[name] = pd.to_datetime(accounts[name], format="%y%m%d").dt.date
    accounts["account_id"] = "a" + accounts["account_id"].astype(str)
    accounts["district_id"] = "d" + accounts["district_id"].astype(str)
    orders = read["order"].drop(columns="order_id")
    orders["account_id"] = "a" + orders["account_id"].astype(str)
    orders["account_to"] = orders.pop("bank_to") + orders["account_to"].astype(str)
    accounts.to_csv(folder / "berka-accounts.csv", index=False)
    orders.to_csv(folder / "berka-orders.csv", index=False)
    graph = read_graph(
        folder / "berka-orders.csv",
        features=folder / "berka-accounts.csv",
        id_column="account_id",
        source_column="account_id",
        target_column="account_to",
        unknown_nodes="add",
    )
    bad = read["loan"].set_index("a" + read["loan"]["account_id"].astype(str))["status"].isin(["B", "D"])
    status = bad.reindex(graph.node_ids)
    truth = np.where(status.isna(), -1, status.fillna(value=False).astype(int))
    return Problem(graph, truth, ("good", "bad"))


def _houses(data: Path, folder: Path, quick: bool) -> Problem:
    """Prices of houses: own columns, the mean quality of the street, sales among neighbours, and noise."""
    rng, size = np.random.default_rng(7), 300 if quick else 2000
    place = rng.random((size, 2))
    area, rooms = rng.lognormal(4.6, 0.4, size), rng.integers(1, 7, size)
    built = rng.integers(1900, 2024, size)
    kind = rng.choice(["flat", "terraced", "detached"], size, p=[0.5, 0.3, 0.2])
    quality = rng.normal(size=size)
    distance = ((place[:, None] - place[None]) ** 2).sum(axis=2)
    near = distance.argsort(axis=1)[:, 1:7]
    street = quality[near].mean(axis=1) + np.sin(6 * place[:, 0]) * np.cos(5 * place[:, 1])
    price = np.exp(
        11.0
        + 0.8 * np.log(area / 100)
        + 0.1 * (kind == "detached")
        + 0.15 * np.maximum(0, (built - 1980) / 40) * (kind == "flat")
        + 0.25 * street
        + 0.1 * quality
        + 0.1 * rng.normal(size=size)
    )
    houses = pd.DataFrame({"id": [f"h{at}" for at in range(size)], "area": area.round(1), "rooms": rooms})
    houses = houses.assign(built=built, kind=kind, condition=(5 + 2 * quality).round(1))
    edges = [(f"h{one}", f"h{other}") for one in range(size) for other in near[one, :4]]
    houses.to_csv(folder / f"houses-{quick}.csv", index=False)
    pd.DataFrame(edges, columns=["source", "target"]).to_csv(folder / f"streets-{quick}.csv", index=False)
    graph = read_graph(folder / f"streets-{quick}.csv", features=folder / f"houses-{quick}.csv")
    return Problem(graph, price)


def _benchmark(name: str) -> Callable[[Path, Path, bool], Problem]:
    def make(data: Path, folder: Path, quick: bool) -> Problem:
        path = data / "graphs" / f"{name}.npz"
        if path.is_file():
            with np.load(path) as arrays:
                graph = check_graph(
                    sp.csr_array(arrays["node_features"].astype(np.float32)),
                    arrays["edges"].T,
                    labels=arrays["node_labels"],
                    source=name,
                )
        else:
            graph = load(name, _given(data / "datasets"))
        assert graph.labels is not None
        return Problem(unlabelled(graph), graph.labels.numpy(), tuple(map(str, graph.class_names)))

    return make


CASES = {
    case.name: case
    for case in (
        Case(
            "fraud",
            "fraud (example)",
            "average precision",
            {"yes": 25, "no": 75},
            _example("fraud", "transactions.csv", "accounts.csv", "is_fraud"),
        ),
        Case(
            "fraud-new",
            "fraud, new accounts",
            "average precision",
            {"yes": 25, "no": 75},
            _new_accounts,
        ),
        Case(
            "products",
            "products (example)",
            "accuracy",
            0.2,
            _example("products", "purchases.csv", "products.csv", "category"),
        ),
        Case(
            "papers",
            "papers (example)",
            "accuracy",
            0.1,
            _example("papers", "citations.csv", "papers.csv", "field"),
        ),
        Case("twitch", "Twitch DE, mature", "accuracy", 0.1, _twitch),
        Case("facebook", "Facebook pages, type", "accuracy", 0.05, _facebook),
        Case("bitcoin", "Bitcoin-OTC, fraud", "average precision", 0.5, _bitcoin),
        Case("berka", "Berka, bad loans", "average precision", 0.5, _berka),
        Case("houses", "houses, price (synthetic)", "R²", 0.1, _houses),
        Case("texas", "Texas", "accuracy", 0.48, _benchmark("texas")),
        Case("cora", "Cora", "accuracy", 0.05, _benchmark("cora")),
        Case("uai", "UAI", "accuracy", 0.1, _benchmark("uai")),
        Case("flickr", "Flickr", "accuracy", 0.1, _benchmark("flickr")),
        Case("squirrel", "Squirrel (filtered)", "accuracy", 0.48, _benchmark("squirrel-filtered")),
    )
}
