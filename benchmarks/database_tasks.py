"""Predictions from raw databases: what is predicted, from which rows, and how labelled rows are drawn.

Formula 1 follows RelBench's rel-f1. A row of the label table is a driver at a cut-off date t, for each driver
with a result (for top3: a qualifying) in the window (t, t + days]. Cut-offs are `days` apart: backwards from
the start of the validation dates, and forwards from it and from the start of the test dates, at most 40 each.

- dnf, 30 days: some result of the window has a status other than Finished. As in RelBench, "+1 Lap" is other.
- top3, 30 days: the best qualifying position of the window is at most 3.
- position, 60 days: the mean of positionOrder over the window.

Rows of the other tables after the start of the test dates are left out altogether, also for later cut-offs,
and the features of a cut-off are computed from earlier rows. `f1-…-relbench` learns from the cut-offs before
2005 and is tested on those from 2010 on; `f1-…` learns from all cut-offs before its test dates, which start
in five different years.

There are two parts. Methods are chosen on "val": rows held out of the training rows, or of Formula 1, dates
before 2010, when the earliest test dates start. "test" is for the final scores.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from h3gnn.tables.propose import infer_schema
from h3gnn.tables.schema import Link, Schema, TableSchema, accept_questions
from h3gnn.tables.sources import open_source

Integers = npt.NDArray[np.int64]
Frames = dict[str, pd.DataFrame]

DRAWS, TRAINING = 10, 0.7
"""Random draws of labelled rows, and the share of them."""
CUTOFFS = 40
"""Cut-off dates of the validation and of the test rows, at most."""
FIRST_YEARS = {"test": (2010, 2013, 2016, 2019, 2021), "val": (2005, 2002, 1999, 2007, 1997)}
"""Years with which the scored dates of the draws of Formula 1 start."""
LEAST_OF_CLASS = 10
"""Rarer genres are one class."""


@dataclass(frozen=True, eq=False)
class Problem:
    """A database, the column to predict, and the rows that are labelled.

    Attributes:
        frames, schema: the tables, and their keys, links and times.
        label: `TABLE.COLUMN`.
        label_time: "row" or "now", or None where the rows have no time.
        train, test: positions of the labelled rows and of those that are scored.
        positive: values of the label that are scored as one class, the positive one; () for all classes.
        groups: of each row, the cut-off date; rows of one group are drawn together for standard errors.
    """

    frames: Frames
    schema: Schema
    label: str
    label_time: str | None
    train: Integers
    test: Integers
    positive: tuple[str, ...] = ()
    groups: npt.NDArray[Any] | None = None

    @property
    def table(self) -> str:
        """The table of the label."""
        return self.label.partition(".")[0]

    @property
    def cells(self) -> pd.Series[Any]:
        """The label of each row."""
        return self.frames[self.table][self.label.partition(".")[2]]


@dataclass(frozen=True)
class Task:
    """A prediction task.

    Attributes:
        title, measure: for tables; the measure is "AUC", "balanced accuracy" or "MAE".
        make: returns the problem of a draw, from the folder of the raw data; the part is "val" or "test".
        draws: how many there are.
    """

    title: str
    measure: str
    make: Callable[[Path, int, str], Problem]
    draws: int = field(default=DRAWS)


def opened(path: Path) -> tuple[Frames, Schema]:
    """Return the tables of a source and their inferred schema, all questions answered with yes."""
    source = open_source(path)
    schema = accept_questions(infer_schema(source), "all")
    return {name: source.frame(name) for name in source.tables}, schema


def drawn(labels: pd.Series[Any], draw: int, part: str, *, spread: bool = True) -> tuple[Integers, Integers]:
    """Return random training and scored rows; `spread` draws the same share of each class."""
    rng, known = np.random.default_rng(draw), np.flatnonzero(labels.notna())
    for _ in range(1 if part == "test" else 2):  # the scored rows of "val" are drawn from the training rows
        order = rng.permutation(known)
        if spread:
            codes = pd.factorize(labels)[0][order]
            order = order[np.argsort(codes, kind="stable")]
            places = np.floor(np.arange(len(order) + 1) * TRAINING)
            chosen = places[1:] > places[:-1]
        else:
            chosen = np.arange(len(order)) < round(TRAINING * len(order))
        known, scored = np.sort(order[chosen]), np.sort(order[~chosen])
    return known, scored


def berka(data: Path, draw: int, part: str, *, classes: int) -> Problem:
    """Return bad loans, status B or D: as two classes, or as the four of the table."""
    frames, schema = opened(data / "berka_bank")
    status, bad = frames["loan"]["status"], ("B", "D")
    if classes == 2:
        frames["loan"] = frames["loan"].assign(status=np.where(status.isin(bad), "bad", "good"))
    positive = ("bad",) if classes == 2 else bad
    return Problem(frames, schema, "loan.status", "row", *drawn(status, draw, part), positive)


def bitcoin(data: Path, draw: int, part: str) -> Problem:
    """Return fraudulent users, from who rates whom, how and when."""
    source = open_source(data / "bitcoin_otc")
    frames = {"rating": source.frame("soc-sign-bitcoinotc"), "truth": source.frame("otc_gt")}
    frames["truth"].columns = ["user", "class"]
    tables = {
        "rating": TableSchema("rating", time="TIME_SINCE_EPOCH", nodes={"user": ("FROM_NODE", "TO_NODE")}),
        "truth": TableSchema("truth", nodes={"user": ("user",)}),
    }
    split = drawn(frames["truth"]["class"], draw, part)
    return Problem(frames, Schema(tables), "truth.class", None, *split, ("-1",))


def northwind(data: Path, draw: int, part: str) -> Problem:
    """Return the freight of orders, from their lines and all other rows."""
    frames, schema = opened(data / "northwind")
    split = drawn(frames["orders"]["freight"], draw, part, spread=False)
    return Problem(frames, schema, "orders.freight", "now", *split)


def chinook(data: Path, draw: int, part: str, source: Any = None) -> Problem:
    """Return the most frequent genre of each invoice but a customer's first, of equal ones the first."""
    frames, schema = opened(source or data / "chinook" / "Chinook_Sqlite.sqlite")
    name = {one.lower().replace("_", ""): one for one in frames}

    def of(table: str) -> pd.DataFrame:
        frame = frames[name[table]]
        return frame.set_axis([one.lower().replace("_", "") for one in frame.columns], axis="columns")

    lines = of("invoiceline").merge(of("track")[["trackid", "genreid"]], on="trackid")
    lines = lines.merge(of("genre").rename(columns={"name": "genre"}), on="genreid")
    genre = (
        lines.sort_values("invoicelineid").groupby("invoiceid")["genre"].agg(lambda one: one.mode().iloc[0])
    )
    invoices = of("invoice")[["invoiceid", "customerid", "invoicedate"]].sort_values(
        ["invoicedate", "invoiceid"]
    )
    invoices = invoices[invoices["customerid"].duplicated()]
    labels = invoices.assign(genre=invoices["invoiceid"].map(genre)).drop(columns="invoiceid")
    counts = labels["genre"].value_counts()
    rare = labels["genre"].map(counts) < LEAST_OF_CLASS
    labels["genre"] = labels["genre"].astype(object).mask(rare, "other")
    frames["next"] = labels.reset_index(drop=True)
    link = Link(("customerid",), name["customer"])
    schema = Schema({**schema.tables, "next": TableSchema("next", (), (link,), "invoicedate")})
    split = drawn(frames["next"]["genre"], draw, part)
    return Problem(frames, schema, "next.genre", "row", *split)


@dataclass(frozen=True)
class Window:
    """A label of rel-f1: the table and the days of its window, and the label of each driver's rows there."""

    table: str
    days: int
    label: Callable[[Any], pd.Series[Any]]

    def rows(self, results: pd.DataFrame, cutoffs: pd.DatetimeIndex) -> pd.DataFrame:
        """Return the driver, date and label of each driver with rows in the window of a cut-off."""
        found = []
        for date in cutoffs:
            inside = (results["date"] > date) & (results["date"] <= date + pd.Timedelta(days=self.days))
            some = results[inside]
            if len(some):
                label = self.label(some.groupby("driverId")).rename("label")
                found.append(label.reset_index().assign(date=date))
        return pd.concat(found, ignore_index=True)

    def cutoffs(self, first: pd.Timestamp, last: pd.Timestamp, val: int, test: int) -> pd.DatetimeIndex:
        """Return the cut-off dates, those before the validation dates counted backwards from them."""
        days, starts = pd.Timedelta(days=self.days), [pd.Timestamp(f"{one}-01-01") for one in (val, test)]
        before = pd.date_range(starts[0] - days, first, freq=-days)[::-1]
        ends = [min(starts[0] + (CUTOFFS - 1) * days, starts[1] - days), starts[1] + (CUTOFFS - 1) * days]
        later = [
            pd.date_range(one, min(end, last - days), freq=days)
            for one, end in zip(starts, ends, strict=True)
        ]
        return pd.DatetimeIndex(before.append(later))


WINDOWS = {
    "dnf": Window("results", 30, lambda one: one["statusId"].agg(lambda ids: int((ids != "1").any()))),
    "top3": Window("qualifying", 30, lambda one: (one["position"].min() <= 3).astype(int)),
    "position": Window("results", 60, lambda one: one["positionOrder"].mean()),
}


def formula1(data: Path, draw: int, part: str, kind: str, *, relbench: bool) -> Problem:
    """Return drivers at cut-off dates, and what they do in the days after."""
    frames, schema = opened(data / "formula1")
    window, test = WINDOWS[kind], FIRST_YEARS[part][0 if relbench else draw]
    dates: Any = pd.to_datetime(frames["races"].set_index("raceId")["date"])
    if part == "val":
        dates = dates[dates < pd.Timestamp(f"{FIRST_YEARS['test'][0]}-01-01")]
    rows = frames[window.table].assign(date=lambda one: one["raceId"].map(dates))
    for column in ("position", "positionOrder"):
        if column in rows:
            rows[column] = pd.to_numeric(rows[column], errors="coerce")
    labels = window.rows(rows, window.cutoffs(dates.min(), dates.max(), test - 5, test))
    start = pd.Timestamp(f"{test}-01-01")
    known = set(dates.index[dates <= start])
    for name, frame in frames.items():  # a database of the day at which the test dates start
        if "raceId" in frame:
            frames[name] = frame[frame["raceId"].isin(known)].reset_index(drop=True)
    frames["labels"] = labels.astype({"label": str}) if kind != "position" else labels
    tables = {name: one for name, one in schema.tables.items() if len(frames[name])}
    tables["labels"] = TableSchema("labels", (), (Link(("driverId",), "drivers"),), "date")
    frames = {name: frames[name] for name in tables}
    date = labels["date"].to_numpy()
    before = start if not relbench else pd.Timestamp(f"{test - 5}-01-01")
    train, later = (
        np.flatnonzero(date < before.to_datetime64()),
        np.flatnonzero(date >= start.to_datetime64()),
    )
    positive = () if kind == "position" else ("1",)
    return Problem(frames, Schema(tables), "labels.label", "row", train, later, positive, date)


def _f1(kind: str, measure: str) -> dict[str, Task]:
    return {
        f"f1-{kind}{suffix}": Task(
            f"Formula 1, {kind}{', as RelBench' if relbench else ''}",
            measure,
            partial(formula1, kind=kind, relbench=relbench),
            1 if relbench else len(FIRST_YEARS["test"]),
        )
        for suffix, relbench in (("", False), ("-relbench", True))
    }


TASKS: dict[str, Task] = {
    "berka": Task("Berka, bad loans", "AUC", partial(berka, classes=2)),
    "berka-classes": Task("Berka, four classes", "AUC", partial(berka, classes=4)),
    "bitcoin": Task("Bitcoin-OTC, frauds", "AUC", bitcoin),
    "chinook": Task("Chinook, next genre", "balanced accuracy", chinook),
    "northwind": Task("Northwind, freight", "MAE", northwind),
    **_f1("dnf", "AUC"),
    **_f1("top3", "AUC"),
    **_f1("position", "MAE"),
}
