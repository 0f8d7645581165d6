"""Encode the values of one column as features: one class per encoder, fitted once, applied to new rows.

The state of an encoder is plain values and arrays, so that it is stored as JSON and safetensors. The features
of all encoders have one scale: a number has variance 1, a one-hot column is 0 or 1, and the components of a
text keep the proportions of its principal directions.
"""

# ruff: noqa: D102 (the methods of encoders are documented in `Encoder`)

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
import pandas as pd

from h3gnn.errors import InputError
from h3gnn.storage.schema import ListOf, Record, Text, check_values, parse_json
from h3gnn.tables.infer import MOST_CATEGORIES, Array, Floats

MOST_ITEMS = 256  # lists with more distinct items than this are hashed into this many columns
RARE_SHARE = 1 / 500  # a category that holds a smaller share of the rows is rare
MOSTLY_RARE = 0.5  # if rare categories hold more of the rows, the characters of all are encoded instead
HEAVY_TAIL = 8.0  # numbers more standard deviations from their mean are encoded by their logarithm
TEXT_BUCKETS = 1 << 15  # number of buckets that words or character n-grams are hashed into
TEXT_COLUMNS = 64
MIN_ROWS_FOR_PRUNING = 50  # with as many rows, a word that occurs in one row only is ignored
YEAR, WEEK = 365.2425, 7.0
CYCLES = {"year": (YEAR, 0.0), "week": (WEEK, 4.0), "day": (1.0, 0.0)}
"""Length in days and phase of each cycle: 1970 began on a Thursday, and weeks begin on Sunday."""

MODULES = ListOf(Record({"type": Text(r"sentence_transformers\.[\w.]+")}, others=Any))
"""Schema of a sentence model's `modules.json`."""

VALUE, COMPONENT, MISSING = "value", "component", "missing"
"""Roles of a feature: meaningful by itself, one of many without own meaning, the mark of a missing cell."""


class Encoder(ABC):
    """Turns the values of one column into features. Subclasses are dataclasses of their fitted state."""

    kind: ClassVar[str]
    gaps: bool  # whether the last feature marks missing cells

    @classmethod
    @abstractmethod
    def fit(cls, values: Array) -> Self:
        """Learn the state from values, NaN or None where missing."""

    @abstractmethod
    def encode(self, values: Array) -> Floats:
        """Return the features of values without the mark of missing cells, `[rows, features]`."""

    @abstractmethod
    def names(self, column: str) -> list[str]:
        """Return the names of a column's features, without the mark of missing cells."""

    @abstractmethod
    def describe(self, values: Array) -> str:
        """Describe the encoding of the fitted values."""

    @property
    def role(self) -> str:
        return VALUE

    def transform(self, values: Array) -> Floats:
        """Return the features of values, `[rows, features]`."""
        return np.column_stack([self.encode(values), *([missing_rows(values)] if self.gaps else [])])

    def features(self, column: str) -> list[tuple[str, str]]:
        """Return name and role of each feature of a column."""
        found = [(name, self.role) for name in self.names(column)]
        return found + [(f"{column} is missing", MISSING)] * self.gaps

    def state(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """Return the plain values and the arrays of the state."""
        arrays = {name: value for name, value in vars(self).items() if isinstance(value, np.ndarray)}
        return {name: value for name, value in vars(self).items() if name not in arrays}, arrays


def missing_rows(values: Array) -> npt.NDArray[np.bool_]:
    """Return which rows have no value."""
    if values.dtype == object:
        return np.array([one is None for one in values], dtype=bool)
    return np.asarray(np.isnan(values).reshape(len(values), -1).any(axis=1))


def _positive(scale: float) -> float:
    return scale if scale > 1e-12 else 1.0


def _signed_log(values: Array) -> Array:
    return np.sign(values) * np.log1p(np.abs(values))


@dataclass(frozen=True)
class NumberEncoder(Encoder):
    """Standardized numbers; a missing one is the median, and marked."""

    kind = "number"
    fill: float
    mean: float
    scale: float
    log: bool
    gaps: bool

    @classmethod
    def fit(cls, values: Array) -> Self:
        known = values[~np.isnan(values)]
        spread = max(known.std(), 1e-300)
        log = bool(known.size > 2 and np.abs(known - known.mean()).max() > HEAVY_TAIL * spread)
        return cls._fit(values, log=log)

    @classmethod
    def _fit(cls, values: Array, *, log: bool = False, **more: Any) -> Self:
        known = values[~np.isnan(values)]
        known = _signed_log(known) if log else known
        fill, mean, scale = float(np.median(known)), float(known.mean()), _positive(float(known.std()))
        return cls(fill, mean, scale, log, known.size < values.size, **more)

    def encode(self, values: Array) -> Floats:
        scaled = _signed_log(values) if self.log else values
        return np.asarray((np.where(np.isnan(values), self.fill, scaled) - self.mean) / self.scale)

    def decode(self, encoded: Floats) -> Floats:
        """Return the numbers behind encoded ones, the median where they were missing."""
        scaled = np.asarray(encoded, dtype=np.float64) * self.scale + self.mean
        return np.sign(scaled) * np.expm1(np.abs(scaled)) if self.log else scaled

    def names(self, column: str) -> list[str]:
        return [column]

    def describe(self, values: Array) -> str:
        gaps = int(np.isnan(values).sum())
        marked = f"; {gaps:,} missing values become the median and are marked" if gaps else ""
        return ("logarithm, " if self.log else "") + "scaled" + marked


@dataclass(frozen=True)
class BooleanEncoder(NumberEncoder):
    """A boolean is a number with two values, never by its logarithm."""

    kind = "boolean"

    @classmethod
    def fit(cls, values: Array) -> Self:
        return replace(super().fit(values), log=False)

    def describe(self, values: Array) -> str:
        return f"0 or 1 ({100 * float(np.nanmean(values)):.0f} % yes), {super().describe(values)}"


@dataclass(frozen=True)
class DateEncoder(NumberEncoder):
    """Standardized elapsed time, and the time of the year, week and day where the dates span these."""

    kind = "date"
    cycles: list[str]

    @classmethod
    def fit(cls, values: Array) -> Self:
        known = values[~np.isnan(values)]
        span, clocks = float(known.max() - known.min()), bool((known != np.floor(known)).any())
        cycles = ["year"] * (span > YEAR / 2) + ["week"] * (span > WEEK) + ["day"] * clocks
        return cls._fit(values, cycles=cycles)

    def encode(self, values: Array) -> Floats:
        columns = [super().encode(values)]
        for length, phase in (CYCLES[cycle] for cycle in self.cycles):
            angle = 2 * np.pi * (values + phase) / length
            columns += [np.where(np.isnan(values), 0.0, wave(angle)) for wave in (np.sin, np.cos)]
        return np.column_stack(columns)

    def names(self, column: str) -> list[str]:
        waves = [f"{column}, {wave} of the {cycle}" for cycle in self.cycles for wave in ("sine", "cosine")]
        return [column, *waves]

    def features(self, column: str) -> list[tuple[str, str]]:
        elapsed, *others = super().features(column)
        return [elapsed, *((name, COMPONENT if role == VALUE else role) for name, role in others)]

    def describe(self, values: Array) -> str:
        cycles = f", and the time of the {', '.join(self.cycles)}" if self.cycles else ""
        marked = "; missing values become the median and are marked" if self.gaps else ""
        return f"elapsed time, scaled{cycles}{marked}"


@dataclass(frozen=True)
class VectorEncoder(Encoder):
    """Vectors of numbers, centred, with one scale for all; a missing one is the mean."""

    kind = "vector"
    scale: float
    gaps: bool
    mean: Array

    @classmethod
    def fit(cls, values: Array) -> Self:
        scale = _positive(float(np.nanstd(values, axis=0).max()))
        return cls(scale, bool(np.isnan(values).any()), np.nanmean(values, axis=0))

    def encode(self, values: Array) -> Floats:
        return np.where(missing_rows(values)[:, None], 0.0, (values - self.mean) / self.scale)

    def names(self, column: str) -> list[str]:
        return [f"{column}[{at}]" for at in range(len(self.mean))]

    def describe(self, values: Array) -> str:
        return f"{len(self.mean):,} columns, scaled together" + ", one for missing" * self.gaps


@dataclass(frozen=True)
class CategoryEncoder(Encoder):
    """One-hot columns; rare categories share one, and an unknown one is rare, or all zeros."""

    kind, most, meaning = "category", MOST_CATEGORIES, " of 0 and 1"
    kept: list[str] | None
    rare: bool
    gaps: bool

    @staticmethod
    def items(values: Array) -> list[list[str]]:
        """Return the categories of each row."""
        return [[] if one is None else [one] for one in values]

    @classmethod
    def count(cls, values: Array) -> Counter[str]:
        """Return the number of rows with each category."""
        return Counter(one for items in cls.items(values) for one in {*items})

    @classmethod
    def fit(cls, values: Array) -> Self:
        counts = cls.count(values)
        kept = _frequent(counts, cls.most, len(values))
        return cls(kept, len(kept) < len(counts), bool(missing_rows(values).any()))

    def encode(self, values: Array) -> Floats:
        column = {one: at for at, one in enumerate(self.kept or ())}
        return _indicators(self.items(values), column, len(column) + self.rare)

    def names(self, column: str) -> list[str]:
        return [f"{column}={one}" for one in self.kept or ()] + [f"{column} is rare"] * self.rare

    def describe(self, values: Array) -> str:
        kept = len(self.kept or ())
        rare = len(self.count(values)) - kept
        shared = f", one for {rare:,} rare" if rare else ""
        return f"{kept:,} columns{self.meaning}{shared}" + ", one for missing" * self.gaps


@dataclass(frozen=True)
class ListEncoder(CategoryEncoder):
    """Multi-hot columns of the items; beyond `MOST_ITEMS` distinct items they are hashed (`kept` is None)."""

    kind, most, meaning = "list", MOST_ITEMS, ", 1 where the list contains the item"

    @staticmethod
    def items(values: Array) -> list[list[str]]:
        return [one or [] for one in values]

    @classmethod
    def fit(cls, values: Array) -> Self:
        found = super().fit(values)
        if len(cls.count(values)) > MOST_ITEMS:
            return replace(found, kept=None, rare=False)
        return replace(found, kept=sorted(found.kept or ()))

    def encode(self, values: Array) -> Floats:
        if self.kept is not None:
            return super().encode(values)
        from sklearn.utils import murmurhash3_32

        column = {one: int(murmurhash3_32(one, positive=True)) % MOST_ITEMS for one in self.count(values)}
        return _indicators(self.items(values), column, MOST_ITEMS)

    def names(self, column: str) -> list[str]:
        if self.kept is None:
            return [f"{column} #{at}" for at in range(MOST_ITEMS)]
        return [f"{column}: {one}" for one in self.kept] + [f"{column}: a rare one"] * self.rare

    @property
    def role(self) -> str:
        return COMPONENT if self.kept is None else VALUE

    def describe(self, values: Array) -> str:
        if self.kept is None:
            return f"{len(self.count(values)):,} items hashed into {MOST_ITEMS} columns"
        return super().describe(values)


def _indicators(rows: Sequence[Iterable[str]], column: Mapping[str, int], width: int) -> Floats:
    """Return 1 in the columns of each row's items; items without a column share the one after, if any."""
    found = np.zeros((len(rows), width))
    for row, items in enumerate(rows):
        at = [column.get(one, len(column)) for one in items]
        found[row, [one for one in at if one < width]] = 1.0
    return found


def _frequent(counts: Counter[str], most: int, rows: int) -> list[str]:
    """Return the most frequent values that are not rare, in order of frequency, then of the alphabet."""
    least = max(1, int(RARE_SHARE * rows))
    ordered = sorted(counts, key=lambda one: (-counts[one], one))
    return [one for one in ordered[:most] if counts[one] >= least]


@dataclass(frozen=True)
class TextEncoder(Encoder):
    """Hashed TF-IDF of words or of character n-grams, reduced by a truncated SVD; a missing text is 0.

    Hashing needs no vocabulary, and works for any language.
    """

    kind, role = "text", COMPONENT
    form: str
    gaps: bool
    scale: float
    used: Array  # [words], the buckets that count
    weight: Array  # [words], inverse document frequency
    directions: Array  # [components, words]

    @classmethod
    def fit(cls, values: Array, form: str = "words") -> Self:
        counts = count_words(values, form)
        rows = counts.shape[0]
        frequency = np.bincount(counts.indices, minlength=TEXT_BUCKETS)
        least = 2 if rows >= MIN_ROWS_FOR_PRUNING else 1
        used = np.flatnonzero((frequency >= least) & (frequency < max(rows, 2)))
        if not used.size:
            return cls(form, False, 1.0, used, np.empty(0), np.empty((0, 0)))
        weight = np.log((1 + rows) / (1 + frequency[used])) + 1.0
        weighted = _tf_idf(counts[:, used], weight)
        directions = _directions(weighted, min(TEXT_COLUMNS, used.size, rows))
        scale = _positive(float((weighted @ directions.T).std(axis=0).max()))
        gaps = bool(missing_rows(values).any())
        return cls(form, gaps, scale, used, weight.astype(np.float32), directions.astype(np.float32))

    def encode(self, values: Array) -> Floats:
        counts = count_words(values, self.form)[:, self.used]
        weighted = _tf_idf(counts, self.weight.astype(np.float64))
        return np.asarray(weighted @ self.directions.astype(np.float64).T / self.scale)

    def names(self, column: str) -> list[str]:
        return [f"{column} ~{at}" for at in range(len(self.directions))]

    def describe(self, values: Array) -> str:
        if not self.used.size:
            return "no word occurs in two rows"
        reduced = f"reduced to {len(self.directions)} columns" + ", one for missing" * self.gaps
        return f"TF-IDF of {self.used.size:,} hashed {self.form}, {reduced}"


def _directions(weighted: Any, width: int) -> Array:
    """Return the right singular vectors of the largest singular values, `[width, words]`."""
    if width == min(weighted.shape):  # all of them, which the truncated solver does not compute
        return np.linalg.svd(weighted.toarray(), full_matrices=False)[2]
    from sklearn.decomposition import TruncatedSVD

    return np.asarray(TruncatedSVD(width, n_iter=7, random_state=0).fit(weighted).components_)


def count_words(values: Array, form: str) -> Any:
    """Return how often each hashed word, or run of two to four characters, occurs, `[rows, buckets]`."""
    from sklearn.feature_extraction.text import HashingVectorizer

    style: dict[str, Any] = {"analyzer": "char_wb", "ngram_range": (2, 4)}
    if form == "words":
        style = {"analyzer": "word", "token_pattern": r"(?u)\b\w+\b"}
    hashing = HashingVectorizer(n_features=TEXT_BUCKETS, alternate_sign=False, norm=None, **style)
    rows, distinct = pd.factorize(np.array(["" if one is None else one for one in values], dtype=object))
    return hashing.transform(distinct.tolist()).tocsr()[rows]


def _tf_idf(counts: Any, weight: Array) -> Any:
    from sklearn.preprocessing import normalize

    weighted = counts.copy()
    weighted.data = (1.0 + np.log(weighted.data)) * weight[weighted.indices]
    return normalize(weighted)


@dataclass(frozen=True)
class SentenceEncoder(Encoder):
    """Embeddings of a sentence model in a local folder, centred, with one scale for all."""

    kind, role, gaps = "sentences", COMPONENT, False
    folder: str
    scale: float
    mean: Array

    @classmethod
    def fit(cls, values: Array, folder: str = "") -> Self:
        found = _embed_sentences(values, folder)
        scale = _positive(float(found.std(axis=0).max()))
        return cls(str(Path(folder).resolve()), scale, found.mean(axis=0))

    def encode(self, values: Array) -> Floats:
        return np.asarray((_embed_sentences(values, self.folder) - self.mean) / self.scale)

    def names(self, column: str) -> list[str]:
        return [f"{column} ~{at}" for at in range(len(self.mean))]

    def describe(self, values: Array) -> str:
        return f"{len(self.mean)} columns of the sentence model in {self.folder}"


def _embed_sentences(values: Array, folder: str) -> Floats:
    if not Path(folder).is_dir():
        message = f"there is no folder {folder} with a sentence model; without --text-model none is needed"
        raise InputError(message, code="text-model-missing")
    modules = Path(folder) / "modules.json"
    if modules.is_file():  # a model with other modules would run code from the folder
        stored = parse_json(modules.read_bytes(), modules, InputError)
        check_values(MODULES, stored, modules, words="cannot be used")
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError:
        message = "a sentence model needs its library: pip install 'h3gnn[text]'"
        raise InputError(message, code="library-missing") from None
    model = SentenceTransformer(str(folder), local_files_only=True)
    texts = ["" if one is None else one for one in values]
    return np.asarray(model.encode(texts, show_progress_bar=False), dtype=np.float64)


ENCODERS: dict[str, type[Encoder]] = {
    **{encoder.kind: encoder for encoder in (NumberEncoder, BooleanEncoder, DateEncoder, VectorEncoder)},
    **{encoder.kind: encoder for encoder in (CategoryEncoder, ListEncoder, TextEncoder, SentenceEncoder)},
}
"""Encoders by the name under which a plan stores them."""


def fit_encoder(kind: str, form: str, values: Array, text_model: str | None) -> Encoder:
    """Fit the encoder of a column; of categories that are mostly rare, the characters are encoded."""
    if kind == "text" and text_model is not None:
        return SentenceEncoder.fit(values, text_model)
    if kind == "text":
        return TextEncoder.fit(values, form)
    if kind == "category":
        counts = CategoryEncoder.count(values)
        kept = sum(counts[one] for one in _frequent(counts, MOST_CATEGORIES, len(values)))
        if len(counts) > MOST_CATEGORIES and kept < (1 - MOSTLY_RARE) * sum(counts.values()):
            return TextEncoder.fit(values, "characters")
    return ENCODERS["vector" if form == "vector" else kind].fit(values)
