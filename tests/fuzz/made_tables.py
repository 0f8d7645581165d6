"""Tables whose meaning is known, written as people and programs write them; and later versions of them.

A column is made from its values; its cells are written afterwards, in one of the ways that are in use. So
what a careful analyst reads in it is known without the reader under test. A column that nobody can read for
certain is `open`.
"""

from __future__ import annotations

import csv
import datetime
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from hypothesis import strategies as st

Chance = np.random.Generator
GAPS = ["", "", "", "NA", "NaN", "n/a", "null", "None", "-", "?", "\\N", "#N/A", "nan", "  "]
TOWNS = [
    "Rome",
    "Oslo",
    "Ulm",
    "Köln",
    "São Paulo",
    "Łódź",
    "St. Ives",
    "Aix, Marseille",
    'The "Hill"',
    "Bath",
]
NAMES = [
    "age",
    "Größe",
    "a b",
    "town",
    "price",
    "since",
    "col-7",
    "item",
    "note",
    "1st",
    "2019",
    "x, y",
    "Km",
]
SPACES = [" ", "\u00a0", "\u202f", "'", "’"]
PREFIXES = ["$", "€", "£", "EUR ", "USD ", "€ "]
SUFFIXES = ["%", " %", " kg", "kg", " €", "€", " EUR", " km", " °C", "h"]
MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
EPOCH = datetime.date(1970, 1, 1)


@dataclass(frozen=True)
class Made:
    """A column: what it means, and how its cells are written.

    Attributes:
        kind: number, date, yes (a boolean), words, codes (digits that are no number) or open (two readings).
        values: of the rows, None where missing; dates in days since 1970.
        cells: the same as text.
        native: the same as objects of Python, for data frames and Parquet.
        form: how the cells are written, for messages and for later versions.
    """

    name: str
    kind: str
    values: list[Any]
    cells: list[str]
    native: list[Any]
    form: str = ""

    def take(self, rows: Sequence[int]) -> Made:
        """Return some rows."""
        values, cells, native = (
            [part[row] for row in rows] for part in (self.values, self.cells, self.native)
        )
        return replace(self, values=values, cells=cells, native=native)


def grouped(number: float, digits: int, group: str, mark: str) -> str:
    """Return a number with separators between thousands and before its decimals."""
    return f"{number:,.{digits}f}".replace(",", "\0").replace(".", mark).replace("\0", group)


BODIES: dict[str, Callable[[float, int, Chance], str]] = {
    "plain": lambda one, digits, _: f"{one:.{digits}f}",
    "shortest": lambda one, digits, _: repr(round(one, digits)),
    "exponent": lambda one, _, __: f"{one:.3e}",
    "grouped": lambda one, digits, _: grouped(one, digits, ",", "."),
    "comma": lambda one, digits, _: grouped(one, digits, ".", ","),
    "decimal comma": lambda one, digits, _: grouped(one, digits, "", ","),
    "spaced": lambda one, digits, _: grouped(one, digits, " ", "."),
    "spaced comma": lambda one, digits, chance: grouped(one, digits, SPACES[int(chance.integers(5))], ","),
}
"""How the digits of a number are written."""


def numbers(chance: Chance, rows: int, form: str, unit: str = "") -> tuple[list[float], list[str]]:
    """Return numbers and how they are written: `form` is one of BODIES, `unit` goes before or after."""
    digits, scale = int(chance.integers(0, 4)), float(chance.choice([1.0, 300.0, 2e4, 3e6]))
    drawn = np.abs(chance.normal(size=rows)) * scale
    if chance.random() < 0.3:
        drawn *= chance.choice([-1, 1], rows)
    drawn[:2] = [float(chance.integers(1, 999)), 1234.567]  # thousands are seen for what they are
    minus = str(chance.choice(["-", "\u2212", "()"]))
    values, cells = [], []
    for one in drawn:
        text = BODIES[form](abs(float(one)), digits, chance)
        value = float(one) if form == "exponent" else round(abs(float(one)), digits)
        value = float(f"{abs(value):.3e}") if form == "exponent" else value
        text = unit + text if unit in PREFIXES else text + unit
        if one < 0:
            value, text = -value, f"({text})" if minus == "()" else minus + text
        values.append(value)
        cells.append(text)
    return values, cells


def make_numbers(chance: Chance, rows: int) -> Made:
    form = str(chance.choice([*BODIES]))
    unit = str(chance.choice([*PREFIXES, *SUFFIXES])) if chance.random() < 0.3 else ""
    values, cells = numbers(chance, rows, form, unit)
    return Made("", "number", [*values], cells, [*values], f"{form}|{unit}")


def make_wholes(chance: Chance, rows: int) -> Made:
    low, high = [(0, 9), (0, 2), (-50, 5000), (1950, 2025), (10**5, 10**7)][int(chance.integers(5))]
    values = chance.integers(low, high, rows).tolist()
    cells = [f"{one}.0" for one in values] if chance.random() < 0.2 else [*map(str, values)]
    return Made("", "number", values, cells, values, "plain|")


def make_mixed_units(chance: Chance, rows: int) -> Made:
    first, second = [("$", "€"), (" kg", " g"), ("%", ""), ("", " EUR"), (" °C", " °F")][
        int(chance.integers(5))
    ]
    values, cells = numbers(chance, rows, "plain", first)
    cells[2] = f"{second}12" if second in PREFIXES else f"12{second}"
    return Made("", "open", [*values], cells, [*cells], "units")


def make_infinite(chance: Chance, rows: int) -> Made:
    made = make_wholes(chance, rows)
    cells = [*made.cells]
    cells[3] = str(chance.choice(["inf", "-Infinity", "1e999", "#DIV/0!", "oops", "12..5", "0x1F"]))
    return replace(made, kind="open", cells=cells, native=cells, form="spoiled")


DATE_FORMS = [
    *("%Y-%m-%d", "%Y/%m/%d", "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%d-%m-%Y", "%Y%m%d", "%m-%d-%Y"),
    *("%b %d, %Y", "%d %b %Y", "%Y-%m-%dT%H:%M:%SZ", "%Y-%m-%d %H:%M"),
]


def write_dates(dates: Sequence[datetime.date], form: str) -> list[str]:
    """Return dates as text, the months in English."""
    return [one.strftime(form.replace("%b", MONTHS[one.month - 1])) for one in dates]


def make_dates(chance: Chance, rows: int) -> Made:
    days = chance.integers(4000, 19000, rows).tolist()
    days[:2] = [11352, 11323]  # 2001-01-30 and 2001-01-01
    dates = [EPOCH + datetime.timedelta(one) for one in days]
    form = str(chance.choice(DATE_FORMS))
    cells = write_dates(dates, form)
    return Made("", "date", [float(one) for one in days], cells, [pd.Timestamp(one) for one in dates], form)


def make_old_dates(chance: Chance, rows: int) -> Made:
    """Dates of six digits, of which only the name of the column says that they are dates."""
    days = chance.integers(8500, 10500, rows).tolist()
    cells = [(EPOCH + datetime.timedelta(one)).strftime("%y%m%d") for one in days]
    return Made("date", "date", [float(one) for one in days], cells, [*map(int, cells)], "%y%m%d")


def make_open_dates(chance: Chance, rows: int) -> Made:
    mark = str(chance.choice(["/", "-"]))
    cells = [f"{int(a)}{mark}{int(b)}{mark}2020" for a, b in chance.integers(1, 13, (rows, 2))]
    cells[0] = f"3{mark}4{mark}2020"
    return Made("", "open", [*cells], cells, [*cells], "day or month")


def make_yes(chance: Chance, rows: int) -> Made:
    words = [("yes", "no"), ("True", "False"), ("t", "f"), ("Y", "N"), ("TRUE", "FALSE")][
        int(chance.integers(5))
    ]
    values = [1, 0, *chance.integers(0, 2, rows - 2).tolist()]
    return Made("", "yes", values, [words[1 - one] for one in values], [bool(one) for one in values])


def make_words(chance: Chance, rows: int) -> Made:
    several = ["red", "green", "blue", "4 x 4", "x1", "1st"] if chance.random() < 0.5 else TOWNS
    words = [*several[:2], *several[:2], *(str(one) for one in chance.choice(several, rows - 4))]
    return Made("", "words", words, words, words)


def make_sentences(chance: Chance, rows: int) -> Made:
    words = [" ".join(str(one) for one in chance.choice(TOWNS, 5)) + f" {row}" for row in range(rows)]
    return Made("", "words", words, words, words)


def make_codes(chance: Chance, rows: int) -> Made:
    """Digits that are no number: postcodes, telephone numbers, addresses, seasons, versions."""
    kind, drawn = int(chance.integers(7)), chance.integers(0, 10**6, rows).tolist()
    cells = [
        [f"{one % 30000:05d}" for one in drawn],
        [f"030 123 {100 + one % 900}" for one in drawn],
        [f"192.168.{100 + one % 9}.{100 + one % 99}" for one in drawn],
        [f"{2000 + one % 9}/{one % 9 + 1:02d}" for one in drawn],
        [f"1.{one % 9}.{one % 7}" for one in drawn],
        [f"{one % 24:02d}:{one % 60:02d}" for one in drawn],
        [f"0{one % 10}" for one in drawn],
    ][kind]
    cells[0] = ["01234", "030 123 456", "192.168.100.101", "2003/04", "1.2.3", "12:30", "07"][kind]
    return Made("", "codes", cells, cells, cells, str(kind))


MAKERS: dict[str, Callable[[Chance, int], Made]] = {
    **{"numbers": make_numbers, "wholes": make_wholes, "dates": make_dates, "old dates": make_old_dates},
    **{"yes": make_yes, "words": make_words, "sentences": make_sentences, "codes": make_codes},
    **{"mixed units": make_mixed_units, "spoiled": make_infinite, "day or month": make_open_dates},
}
UNCERTAIN = ("mixed units", "spoiled", "day or month")


def with_gaps(made: Made, chance: Chance, share: float) -> Made:
    """Empty some cells, but not the first four, which show what the column is."""
    if made.kind == "open" or share == 0.0:
        return made
    empty = chance.random(len(made.cells)) < share
    empty[:4] = False
    words = [str(one) for one in chance.choice(GAPS, 2)]
    cells = [
        words[row % 2] if gap else cell for row, (gap, cell) in enumerate(zip(empty, made.cells, strict=True))
    ]
    values = [None if gap else one for gap, one in zip(empty, made.values, strict=True)]
    native = [None if gap else one for gap, one in zip(empty, made.native, strict=True)]
    if made.kind in ("words", "codes"):  # among words, "-" and "?" are words
        values = [cell if cell in ("-", "?") else one for cell, one in zip(cells, values, strict=True)]
        native = [*values]
    return replace(made, cells=cells, values=values, native=native)


def make_ids(chance: Chance, rows: int, form: str) -> list[str]:
    """Return distinct ids as text."""
    drawn = chance.permutation(8 * rows)[:rows].tolist()
    if form == "alike":  # different only by the way of writing
        base = [text for one in range(1, rows) for text in (f"{one}", f"0{one}", f"{one}.0", f"{one}e3")]
        return [str(one) for one in chance.permutation(base[:rows])]
    write: dict[str, Callable[[int], str]] = {
        "numbers": str,
        "from 0": lambda one: str(drawn.index(one)),
        "negative": lambda one: str(one - 4 * rows),
        "padded": lambda one: f"{one:06d}",
        "large": lambda one: str(2**53 + one),
        "hashes": lambda one: str(2**64 - 1 - one),
        "hex": lambda one: f"{one * 7919 % 4096:03x}e{one}",
        "letters": lambda one: f"k{one}",
        "words": lambda one: (
            ["NA", "null", "None", "nan", "N/A"][drawn.index(one)] if drawn.index(one) < 5 else f"w{one}"
        ),
        "texts": lambda one: f"{TOWNS[one % 10]} {one}",
        "dates": lambda one: str(EPOCH + datetime.timedelta(one)),
    }
    return [write[form](one) for one in drawn]


ID_FORMS = ("numbers", "from 0", "negative", "padded", "large", "hashes", "hex", "letters", "words", "texts",
            "dates", "alike")  # fmt: skip


@dataclass(frozen=True)
class Classes:
    """The class or number to predict of each node, None where unknown, and how it is written."""

    values: list[Any]
    cells: list[str]
    kind: str  # words, codes (integers), numbers, open


def make_classes(chance: Chance, rows: int) -> Classes:
    kind = str(chance.choice(["words", "codes", "floats", "numbers", "negative", "cases", "yes", "marks"]))
    drawn = chance.integers(0, 3, rows).tolist()
    drawn[:3] = [0, 1, 2]
    cells = {
        "words": [["a", "b", "NA-1"][one] for one in drawn],
        "codes": [str(one) for one in drawn],
        "floats": [["1", "1.0", "2"][one] for one in drawn],
        "numbers": [f"{one:.2f}" for one in chance.normal(size=rows) * 100],
        "negative": [["-1", "0", "1"][one] for one in drawn],
        "cases": [["Fraud", "fraud", "ok"][one] for one in drawn],
        "yes": [["yes", "no", "no"][one] for one in drawn],
        "marks": [["yes", "no", "?"][one] for one in drawn],
    }[kind]
    values: list[Any] = [*cells]
    if kind == "floats":
        values = [str(int(float(one))) for one in cells]
    gap = str(chance.choice(["", "NA", "NaN", "n/a", "null", "None"]))
    for row in range(4, rows):
        if chance.random() < 0.15:
            values[row], cells[row] = None, gap
    return Classes(values, cells, "open" if kind in ("negative", "cases", "marks") else kind)


@dataclass(frozen=True)
class MadeTable:
    """A table of nodes, its edges and labels, and how they are written.

    Attributes:
        ids, columns, key, key_at: the ids, the other columns, name and position of the column of the ids.
        ends, weights: the edges by id, and their weights if they have any.
        classes, where: what is to be predicted, and "file" or "column".
        style, edge_style: suffix, header, encoding, delimiter, quoting and line end of the files.
        end_names: the columns of the ends.
    """

    ids: list[str]
    columns: list[Made]
    key: str
    key_at: int
    ends: list[tuple[str, str]]
    weights: Made | None
    classes: Classes | None
    where: str
    style: dict[str, Any] = field(default_factory=dict)
    edge_style: dict[str, Any] = field(default_factory=dict)
    end_names: tuple[str, str] = ("source", "target")

    def names(self) -> list[str]:
        """The names of the columns as a reader gives them; without header, their positions."""
        at = [one for one in range(len(self.columns) + 1) if one != self.key_at]
        if self.style["header"]:
            return [one.name for one in self.columns]
        return [f"column {one + 1}" for one in at]


ENDS = [("source", "target"), ("from_node", "to_node"), ("id_1", "id_2"), ("a", "b"), ("buyer", "seller")]


@st.composite
def styles(draw: st.DrawFn) -> dict[str, Any]:
    suffix = draw(st.sampled_from([".csv", ".csv", ".csv", ".tsv", ".txt", ".parquet", "frame"]))
    marks = {".tsv": ["\t"], ".csv": [",", ",", ";", ";", "\t", "|"], ".txt": [",", ";", "\t", "|", " "]}
    return {
        "suffix": suffix,
        "delimiter": draw(st.sampled_from(marks.get(suffix, [","]))),
        "encoding": draw(st.sampled_from(["utf-8"] * 6 + ["utf-8-sig", "latin-1", "utf-16", "cp1250"])),
        "header": suffix in (".parquet", "frame") or draw(st.sampled_from([True, True, True, False])),
        "quoting": draw(st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC])),
        "end": draw(st.sampled_from(["\n", "\n", "\r\n", "\r"])),
        "comment": draw(st.sampled_from(["", "", "", "# made by hand"])),
        "native": draw(st.booleans()),
        "padded": draw(st.sampled_from([False, False, False, True])),
    }


@st.composite
def tables(draw: st.DrawFn, *, certain: bool = False) -> MadeTable:
    """Draw a table; if `certain`, none of its columns has two readings."""
    chance = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    rows = draw(st.integers(12, 32))
    clear = [name for name in MAKERS if name not in UNCERTAIN]
    kinds = draw(st.lists(st.sampled_from(clear), min_size=1, max_size=4))
    kinds += [] if certain else draw(st.sampled_from([[]] * 9 + [[one] for one in UNCERTAIN]))
    names = draw(st.permutations(NAMES))[: len(kinds)]
    share = draw(st.sampled_from([0.0, 0.0, 0.2]))
    columns = []
    for name, kind in zip(names, kinds, strict=True):
        one = with_gaps(MAKERS[kind](chance, rows), chance, share)
        columns.append(one if one.name else replace(one, name=name))
    columns = list({one.name: one for one in columns}.values())
    ids = make_ids(chance, rows, draw(st.sampled_from(ID_FORMS)))
    ring = [*zip(ids, [*ids[1:], ids[0]], strict=True)]
    weighted = draw(st.sampled_from([False, False, True]))
    values, cells = numbers(chance, rows, draw(st.sampled_from([*BODIES])))
    weight = Made("weight", "number", [*map(abs, values)], [one.strip("-()\u2212") for one in cells], [])
    style = draw(styles())
    classes = make_classes(chance, rows) if draw(st.booleans()) else None
    return MadeTable(
        ids,
        columns,
        draw(st.sampled_from(["id", "account_id", "node", "userId", "name", "ID"])),
        draw(st.integers(0, len(columns))) if style["header"] else 0,
        [ring[row] for row in chance.permutation(rows).tolist()],
        weight if weighted else None,
        classes,
        draw(st.sampled_from(["file", "column"])) if style["header"] else "file",
        style,
        draw(styles()) | {"encoding": "utf-8"},
        draw(st.sampled_from(ENDS)),
    )


def write_text(
    path: Path, header: Sequence[str], rows: Sequence[Sequence[str]], style: dict[str, Any]
) -> Path:
    """Write a text file in the given style."""
    text = io.StringIO(newline="")
    writer = csv.writer(
        text, delimiter=style["delimiter"], quoting=style["quoting"], lineterminator=style["end"]
    )
    if style["comment"]:
        text.write(style["comment"] + style["end"])
    if style["header"]:
        writer.writerow(header)
    pad = " " if style["padded"] and style["delimiter"] != " " and style["quoting"] != csv.QUOTE_ALL else ""
    writer.writerows([[pad + cell for cell in row] for row in rows])
    try:
        path.write_bytes(text.getvalue().encode(style["encoding"]))
    except UnicodeEncodeError:  # letters that this encoding does not have
        path.write_bytes(text.getvalue().encode())
    return path


def write(folder: Path, made: MadeTable, name: str = "features") -> Any:
    """Write the table of nodes; return its path, or the data frame."""
    parts: list[tuple[str, list[str], list[Any]]] = [
        (one.name, one.cells, one.native) for one in made.columns
    ]
    parts.insert(made.key_at, (made.key, made.ids, native_ids(made.ids)))
    if made.classes is not None and made.where == "column":
        parts.append(("label", made.classes.cells, made.classes.cells))
    style = made.style
    if style["suffix"] not in ("frame", ".parquet"):
        header, texts = [one for one, _, _ in parts], [cells for _, cells, _ in parts]
        path = folder / f"{name}{style['suffix']}"
        return write_text(path, header, [*zip(*texts, strict=True)], style)
    frame = pd.DataFrame({one: native if style["native"] else cells for one, cells, native in parts})
    if style["suffix"] == "frame":
        return frame
    frame.to_parquet(folder / f"{name}.parquet", index=False)
    return folder / f"{name}.parquet"


def native_ids(ids: list[str]) -> list[Any]:
    """Return ids as integers if all are written so."""
    integers = all(one.lstrip("-").isdecimal() and str(int(one)) == one for one in ids)
    return [*map(int, ids)] if integers else [*ids]


def write_all(folder: Path, made: MadeTable) -> dict[str, Any]:
    """Write nodes, edges and labels; return the arguments of `read_graph`."""
    given: dict[str, Any] = {"features": write(folder, made)}
    edges: list[Sequence[str]] = [*made.ends]
    names = [*made.end_names]
    if made.weights is not None:
        edges = [(*ends, cell) for ends, cell in zip(made.ends, made.weights.cells, strict=True)]
        names.append("weight")
    given["edges"] = write_rows(folder / "edges", names, edges, made.edge_style)
    if made.classes is not None and made.where == "file":
        rows = [*zip(made.ids, made.classes.cells, strict=True)][::-1]
        given["labels"] = write_rows(folder / "labels", ["id", "label"], rows, made.edge_style)
    return given


def write_rows(path: Path, names: Sequence[str], rows: Sequence[Sequence[str]], style: dict[str, Any]) -> Any:
    """Write rows of text as a file, or return them as a data frame."""
    if style["suffix"] in ("frame", ".parquet"):
        columns = [
            native_ids([*column]) if style["native"] else [*column] for column in zip(*rows, strict=True)
        ]
        frame = pd.DataFrame(dict(zip(names, columns, strict=True)))
        if style["suffix"] == "frame":
            return frame
        frame.to_parquet(path.with_suffix(".parquet"), index=False)
        return path.with_suffix(".parquet")
    return write_text(path.with_suffix(style["suffix"]), names, rows, style)
