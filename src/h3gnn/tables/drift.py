"""Compare the columns of a new table with what the fit saw in them: data drift.

A difference is one note for each column and kind of difference, with the number of rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import torch
from torch import Tensor

from h3gnn.errors import counted, shortened
from h3gnn.graphs.provenance import Repair
from h3gnn.tables import encoders
from h3gnn.tables.encoders import Encoder, count_words, missing_rows
from h3gnn.tables.infer import Array, Cells, Rows
from h3gnn.tables.notations import parse_days

CERTAIN = 3.0  # standard errors between two shares that are clearly different
SAMPLE = 10_000  # texts of the fit whose words are counted
MOST_NOTES = 24  # further columns of unchanged numbers share one note
ROUNDING = 1e-6  # relative to the range; less is no difference
WRITTEN = {
    **{"iso": "2024-03-25", "dmy": "25/03/2024", "mdy": "03/25/2024", "named": "Mar 25, 2024"},
    **{"compact": "20240325", "grouped": "1,200.5", "comma": "1.200,5"},
}
"""An example of each notation."""
SWAPPED = {"dmy": "mdy", "mdy": "dmy"}


@dataclass(frozen=True)
class Seen:
    """What the fit saw in a column.

    Attributes:
        rows, missing: number of rows, and of those without a value.
        unreadable: number of cells of another kind than the declared one, which count as missing.
        least, most: range of numbers, and of dates in days.
        texts, unlike: number of texts in a sample, and of those most of whose words are not encoded.
        known: hashes of all categories or items, where the encoder does not keep them; sorted.
    """

    rows: int
    missing: int
    unreadable: int = 0
    least: float | None = None
    most: float | None = None
    texts: int = 0
    unlike: int = 0
    known: Array | None = None

    @classmethod
    def of(cls, encoder: Encoder, values: Array, unreadable: int) -> Seen:
        """Return what there is in a column of decoded values."""
        gaps = int(missing_rows(values).sum())
        found: dict[str, Any] = {"rows": len(values), "missing": gaps, "unreadable": unreadable}
        if isinstance(encoder, encoders.NumberEncoder) and found["missing"] < len(values):
            found |= {"least": float(np.nanmin(values)), "most": float(np.nanmax(values))}
        elif isinstance(encoder, encoders.CategoryEncoder) and (encoder.rare or encoder.kept is None):
            found["known"] = np.unique([_hash(one) for one in encoder.count(values)]).astype(np.int64)
        elif isinstance(encoder, encoders.TextEncoder):
            sample = values[:: -(-len(values) // SAMPLE) or 1]
            found |= {"texts": len(sample), "unlike": int(_unlike(encoder, sample).sum())}
        return cls(**found)

    def as_dict(self) -> dict[str, Any]:
        """Return everything except the hashes, for JSON."""
        return {name: one for name, one in vars(self).items() if name != "known" and one is not None}


def find_drift(name: str, encoder: Encoder, seen: Seen | None, values: Array) -> list[Repair]:
    """Return how the decoded values of a column differ from those of the fit.

    Without `seen`, as in plans that earlier versions stored, only what the encoder knows is compared.
    """
    found = [_missing(name, encoder, seen, values), _unknown(name, encoder, seen, values)]
    if seen is not None:
        found += [_outside(name, encoder, seen, values), _other_words(name, encoder, seen, values)]
    return [one for one in found if one is not None]


def unreadable_cells(name: str, kind: str, count: int) -> Repair:
    """Return the note on cells of another kind than the declared one."""
    message = f"{name}: {count:,} cells cannot be read as a {kind} and count as missing"
    return Repair("cells-unreadable", message, count, (name,))


def describe_unreadable(kind: str, form: str, cells: Cells, rows: Rows, *, every: bool) -> str | None:
    """Return why the column is written unlike in the fit; None if only some cells are not `kind`."""
    texts = cells.words()[rows]
    notation, _, unit = form.partition(" ")
    written = f", written {WRITTEN[notation]}" if notation in WRITTEN else ""
    expected = f"a {kind}{f' in {unit}' if unit else ''}{written}, as in the fit"
    if kind == "date" and notation in SWAPPED:
        swapped = [one for one in texts if parse_days(one, SWAPPED[notation]) is not None]
        if swapped:
            return f"day and month are in another order than in the fit: {swapped[0]!r} is not {expected}"
    return f"no cell is {expected}: {texts[0]!r}" if every else None


def features_out_of_range(fitted: Tensor, new: Tensor, names: Sequence[str]) -> tuple[Repair, ...]:
    """Return the columns of unchanged numbers in which some rows of `new` lie outside of the fitted range."""
    if fitted.layout == torch.sparse_csr:
        outside = _outside_sparse(fitted, new if new.layout == torch.sparse_csr else new.to_sparse_csr())
    else:
        least, most = fitted.aminmax(dim=0)
        rows, margin = new.to_dense(), ROUNDING * (most - least)
        outside = ((rows < least - margin) | (rows > most + margin)).sum(dim=0)
    columns = torch.nonzero(outside).flatten().tolist()
    named = [names[at] if names else f"column {at + 1}" for at in columns]
    notes = []
    for at, name in zip(columns[:MOST_NOTES], named, strict=False):
        count = int(outside[at])
        message = f"{name}: {_range_words(count, len(new))}"
        notes.append(Repair("numbers-out-of-range", message, count, (name,)))
    if rest := named[MOST_NOTES:]:
        count, listed = int(outside[columns[MOST_NOTES:]].sum()), shortened(rest, 5)
        message = (
            f"{len(rest):,} more columns have numbers outside of the range of the values in the fit: {listed}"
        )
        notes.append(Repair("numbers-out-of-range", message, count, tuple(rest)))
    return tuple(notes)


def _outside_sparse(fitted: Tensor, new: Tensor) -> Tensor:
    """Return for each column of sparse features the entries outside of the range, which includes 0."""
    zeros = torch.zeros(fitted.shape[1])
    least, most = (
        zeros.scatter_reduce(0, fitted.col_indices(), fitted.values(), reduce) for reduce in ("amin", "amax")
    )
    columns, values = new.col_indices(), new.values()
    outside = (values < least[columns]) | (values > most[columns])
    return torch.bincount(columns[outside], minlength=fitted.shape[1])


def _hash(text: str) -> int:
    from sklearn.utils import murmurhash3_32

    return int(murmurhash3_32(text, positive=True))


def _is_clearly_larger(new: int, rows: int, fitted: int, fitted_rows: int) -> bool:
    """Whether the share `new / rows` is larger than the fitted one by three standard errors."""
    if not rows or not fitted_rows:
        return False
    pooled = (new + fitted) / (rows + fitted_rows)
    error = np.sqrt(pooled * (1 - pooled) * (1 / rows + 1 / fitted_rows))
    return bool(new / rows - fitted / fitted_rows > CERTAIN * error)


def _missing(name: str, encoder: Encoder, seen: Seen | None, values: Array) -> Repair | None:
    rows, gaps = len(values), int(missing_rows(values).sum())
    if not gaps or isinstance(encoder, encoders.SentenceEncoder):
        return None
    if not encoder.gaps:
        message = f"{name}: {gaps:,} missing values are imputed; the fitted table has none"
        return Repair("missing-values-imputed", message, gaps, (name,))
    if seen is None:
        return None
    if gaps == rows or _is_clearly_larger(gaps, rows, seen.missing, seen.rows):
        share, before = (100 * part / whole for part, whole in ((gaps, rows), (seen.missing, seen.rows)))
        shares = f"{share:.0f} %, in the fit {before:.0f} %"
        message = f"{name}: {gaps:,} of {rows:,} rows have no value ({shares})"
        return Repair("missing-values-increased", message, gaps, (name,))
    return None


def _unknown(name: str, encoder: Encoder, seen: Seen | None, values: Array) -> Repair | None:
    """Return the categories or list items that the fitted table does not have."""
    if not isinstance(encoder, encoders.CategoryEncoder):
        return None
    counts, kept = encoder.count(values), {*(encoder.kept or ())}
    unknown = {one for one in counts if one not in kept}
    if encoder.rare or encoder.kept is None:
        if seen is None or seen.known is None:
            return None
        known = {*seen.known.tolist()}
        unknown = {one for one in unknown if _hash(one) not in known}
    if not unknown:
        return None
    rows = sum(not unknown.isdisjoint(items) for items in encoder.items(values))
    which = shortened(map(repr, sorted(unknown, key=lambda one: (-counts[one], one))), 3)
    code, what = (
        ("items", "an item") if isinstance(encoder, encoders.ListEncoder) else ("categories", "a category")
    )
    message = f"{name}: {counted(rows, 'row')} with {what} that the fitted table does not have ({which})"
    return Repair(f"unknown-{code}", message, rows, (name,))


def _outside(name: str, encoder: Encoder, seen: Seen, values: Array) -> Repair | None:
    """Return the numbers or dates outside of the fitted range."""
    if seen.least is None or seen.most is None or isinstance(encoder, encoders.BooleanEncoder):
        return None
    margin = ROUNDING * (seen.most - seen.least)
    outside = int(((values < seen.least - margin) | (values > seen.most + margin)).sum())
    if not outside:
        return None
    dates = isinstance(encoder, encoders.DateEncoder)
    least, most, low, high = (
        _day(one) if dates else f"{one:g}"
        for one in (seen.least, seen.most, float(np.nanmin(values)), float(np.nanmax(values)))
    )
    words = f"{_range_words(outside, len(values))}, {least} to {most}: the new ones are {low} to {high}"
    return Repair(f"{'dates' if dates else 'numbers'}-out-of-range", f"{name}: {words}", outside, (name,))


def _range_words(outside: int, rows: int) -> str:
    of = f"{outside:,} of {counted(rows, 'value')} {'is' if outside == 1 else 'are'}"
    return f"{of} outside of the range of the values in the fit"


def _day(days: float) -> str:
    return f"{datetime(1970, 1, 1) + timedelta(days=days):%Y-%m-%d}"


def _other_words(name: str, encoder: Encoder, seen: Seen, values: Array) -> Repair | None:
    """Return the texts most of whose words are unknown, if there are clearly more of them than in the fit."""
    if not isinstance(encoder, encoders.TextEncoder):
        return None
    unlike = int(_unlike(encoder, values).sum())
    if not _is_clearly_larger(unlike, len(values), seen.unlike, seen.texts):
        return None
    message = f"{name}: most words of {unlike:,} of {len(values):,} texts are unknown from the fit"
    return Repair("unknown-words", message, unlike, (name,))


def _unlike(encoder: encoders.TextEncoder, values: Array) -> Array:
    """Return the texts most of whose words are not encoded."""
    counts = count_words(values, encoder.form)
    every = np.asarray(counts.sum(axis=1)).ravel()
    return np.asarray(np.asarray(counts[:, encoder.used].sum(axis=1)).ravel() < 0.5 * every)
