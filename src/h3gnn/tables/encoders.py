"""From the values of one column to numbers: learned once, kept with the model, applied to new rows.

What is learned is plain values and arrays, so that it is stored as JSON and safetensors. Each kind of column
has two functions: one learns, the other encodes. A learned column is brought to one scale with the others:
a number has variance 1, a one-hot column is 0 or 1, and text keeps the proportions of its directions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from h3gnn.errors import InputError
from h3gnn.storage.schema import Listed, Plain, Record, Text, check_values, parse_json
from h3gnn.tables.infer import MOST_CATEGORIES

MOST_ITEMS = 256
"""Lists with more different items than this are hashed into as many columns."""

RARE_SHARE = 1 / 500
"""A category that stands in fewer rows than this share is rare."""

HEAVY_TAIL = 8.0
"""Numbers that lie farther from their mean than this many deviations are taken by their logarithm."""

YEAR, WEEK, DAY = 365.2425, 7.0, 1.0
THURSDAY = 4.0
"""1970 began on a Thursday; weeks begin on Sunday."""

Floats = npt.NDArray[np.float64]
Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Learned:
    """What was learned of one column.

    Attributes:
        how: the encoding in words.
        names: one per number that comes out.
        plain: learned values that JSON holds.
        arrays: learned arrays.
    """

    how: str
    names: tuple[str, ...]
    plain: dict[str, Any] = field(default_factory=dict)
    arrays: dict[str, Array] = field(default_factory=dict)


def learn_number(name: str, values: Array, form: str) -> Learned:
    """Learn median, mean and deviation of the known values, and whether there are gaps."""
    known = values[~np.isnan(values)]
    logarithm = bool(
        known.size > 2 and np.abs(known - known.mean()).max() > HEAVY_TAIL * max(known.std(), 1e-300)
    )
    known = _signed_log(known) if logarithm else known
    middle, mean, spread = (float(one) for one in (np.median(known), known.mean(), known.std()))
    gaps = known.size < values.size
    how = ("logarithm, " if logarithm else "") + "scaled"
    if gaps:
        how += f"; {values.size - known.size:,} gaps take the median and are marked"
    plain = {
        "fill": middle,
        "mean": mean,
        "scale": spread if spread > 1e-12 else 1.0,
        "log": logarithm,
        "gaps": gaps,
    }
    return Learned(how, (name, f"{name} is missing") if gaps else (name,), plain)


def encode_number(learned: Learned, values: Array) -> Floats:
    """Scale; a gap is the median, and marked where gaps were known in the fit."""
    of = learned.plain
    there = ~np.isnan(values)
    found = _signed_log(values) if of["log"] else values
    scaled = (np.where(there, found, of["fill"]) - of["mean"]) / of["scale"]
    return np.column_stack([scaled, ~there] if of["gaps"] else [scaled])


def _signed_log(values: Array) -> Array:
    return np.sign(values) * np.log1p(np.abs(values))


def learn_vector(name: str, values: Array, form: str) -> Learned:
    """Learn the mean of each number of a vector, and one scale for all."""
    spread = float(np.nanstd(values, axis=0).max())
    names = [f"{name}[{at}]" for at in range(values.shape[1])]
    gaps = bool(np.isnan(values).any())
    plain = {"scale": spread if spread > 1e-12 else 1.0, "gaps": gaps}
    how = f"{len(names):,} columns, scaled together" + (", one for missing" if gaps else "")
    return Learned(how, (*names, *[f"{name} is missing"] * gaps), plain, {"mean": np.nanmean(values, axis=0)})


def encode_vector(learned: Learned, values: Array) -> Floats:
    """Scale; a missing vector is the mean one."""
    gaps = np.asarray(np.isnan(values).any(axis=1))
    scaled = np.where(gaps[:, None], 0.0, (values - learned.arrays["mean"]) / learned.plain["scale"])
    return np.column_stack([scaled, gaps] if learned.plain["gaps"] else [scaled])


def learn_boolean(name: str, values: Array, form: str) -> Learned:
    """A yes or no is a number of two values."""
    learned = learn_number(name, values, form)
    yes = float(np.nanmean(values))
    how = f"0 or 1 ({100 * yes:.0f} % yes), scaled" + learned.how.partition("scaled")[2]
    return Learned(how, learned.names, {**learned.plain, "log": False})


def learn_category(name: str, values: Array, form: str) -> Learned:
    """Learn which words have a column of their own; rare and missing ones have one together each."""
    counts = Counter(one for one in values if one is not None)
    least = max(1, int(RARE_SHARE * len(values)))
    kept = sorted(_most_common(counts, MOST_CATEGORIES, least), key=lambda one: (-counts[one], one))
    rare, gaps = len(counts) - len(kept), any(one is None for one in values)
    names = [f"{name}={one}" for one in kept]
    names += [f"{name} is rare"] * bool(rare) + [f"{name} is missing"] * gaps
    how = (
        f"{len(kept):,} columns of 0 and 1"
        + (f", one for {rare:,} rare" if rare else "")
        + (", one for missing" if gaps else "")
    )
    return Learned(how, tuple(names), {"kept": kept, "rare": bool(rare), "gaps": gaps})


def encode_category(learned: Learned, values: Array) -> Floats:
    """One-hot; an unknown word is a rare one, or all zeros where none was rare in the fit."""
    of = learned.plain
    place = {one: at for at, one in enumerate(of["kept"])}
    other = len(place) if of["rare"] else -1
    missing = len(place) + of["rare"] if of["gaps"] else -1
    return _hot([[missing if one is None else place.get(one, other)] for one in values], len(learned.names))


def learn_list(name: str, values: Array, form: str) -> Learned:
    """Learn the items of lists; beyond `MOST_ITEMS` different ones they are hashed."""
    counts = Counter(item for one in values if one is not None for item in {*one})
    gaps = any(one is None for one in values)
    beside = [f"{name} is missing"] * gaps
    if len(counts) > MOST_ITEMS:
        how = f"{len(counts):,} items hashed into {MOST_ITEMS} columns"
        names = [f"{name} #{at}" for at in range(MOST_ITEMS)]
        return Learned(how, (*names, *beside), {"kept": None, "rare": False, "gaps": gaps})
    kept = sorted(_most_common(counts, MOST_ITEMS, max(1, int(RARE_SHARE * len(values)))))
    rare = len(counts) - len(kept)
    names = [f"{name}: {one}" for one in kept] + [f"{name}: a rare one"] * bool(rare)
    how = f"{len(kept):,} columns, 1 where the item stands in the list" + (
        f", one for {rare:,} rare" if rare else ""
    )
    return Learned(how, (*names, *beside), {"kept": kept, "rare": bool(rare), "gaps": gaps})


def encode_list(learned: Learned, values: Array) -> Floats:
    """Multi-hot."""
    of = learned.plain
    missing = [len(learned.names) - 1] if of["gaps"] else []
    if of["kept"] is None:
        from sklearn.utils import murmurhash3_32

        def place_of(item: str) -> int:
            return int(murmurhash3_32(item, positive=True)) % MOST_ITEMS
    else:
        known = {one: at for at, one in enumerate(of["kept"])}

        def place_of(item: str) -> int:
            return known.get(item, len(known) if of["rare"] else -1)

    return _hot(
        [missing if one is None else [place_of(item) for item in one] for one in values], len(learned.names)
    )


def _most_common(counts: Counter[str], most: int, least: int) -> list[str]:
    ordered = sorted(counts, key=lambda one: (-counts[one], one))
    return [one for one in ordered[:most] if counts[one] >= least]


def _hot(places: Iterable[list[int]], width: int) -> Floats:
    """Return 1 at the places of each row; -1 is nowhere."""
    listed = list(places)
    found = np.zeros((len(listed), width))
    for row, columns in enumerate(listed):
        found[row, [column for column in columns if column >= 0]] = 1.0
    return found


def learn_date(name: str, values: Array, form: str) -> Learned:
    """Learn the time since the first date, and which of the year, the week and the day there is to see."""
    known = values[~np.isnan(values)]
    span = float(known.max() - known.min())
    clocks = bool((known != np.floor(known)).any())
    cycles = [("year", YEAR)] * (span > YEAR / 2) + [("week", WEEK)] * (span > WEEK) + [("day", DAY)] * clocks
    elapsed = learn_number(name, values, form)
    elapsed = Learned(elapsed.how, elapsed.names, {**elapsed.plain, "log": False})
    mean, spread = float(known.mean()), float(known.std())
    plain = {
        **elapsed.plain,
        "fill": float(np.median(known)),
        "mean": mean,
        "scale": spread if spread > 1e-12 else 1.0,
    }
    names = [name, *(f"{name}, {wave} of the {cycle}" for cycle, _ in cycles for wave in ("sine", "cosine"))]
    names += [f"{name} is missing"] * plain["gaps"]
    how = "elapsed time, scaled" + (
        f", and the time of the {', '.join(cycle for cycle, _ in cycles)}" if cycles else ""
    )
    how += "; gaps take the median and are marked" if plain["gaps"] else ""
    return Learned(how, tuple(names), {**plain, "cycles": [cycle for cycle, _ in cycles]})


def encode_date(learned: Learned, values: Array) -> Floats:
    """Elapsed time, waves, and the mark of a gap."""
    of = learned.plain
    there = ~np.isnan(values)
    columns = [(np.where(there, values, of["fill"]) - of["mean"]) / of["scale"]]
    for cycle in of["cycles"]:
        length = {"year": YEAR, "week": WEEK, "day": DAY}[cycle]
        angle = 2 * np.pi * (values + (THURSDAY if cycle == "week" else 0.0)) / length
        columns += [np.where(there, np.sin(angle), 0.0), np.where(there, np.cos(angle), 0.0)]
    return np.column_stack([*columns, ~there] if of["gaps"] else columns)


Learn = Callable[[str, Array, str], Learned]
Encode = Callable[[Learned, Array], Floats]
ENCODERS: dict[str, tuple[Learn, Encode]] = {
    "number": (learn_number, encode_number),
    "boolean": (learn_boolean, encode_number),
    "category": (learn_category, encode_category),
    "date": (learn_date, encode_date),
    "list": (learn_list, encode_list),
    "vector": (learn_vector, encode_vector),
}


BUCKETS = 1 << 15
"""Words are hashed into so many places before they are reduced."""

MODULES = Listed(Record({"type": Text(r"sentence_transformers\.[\w.]+")}, others=Plain()))
"""The parts of a sentence model."""

TEXT_COLUMNS = 64
MET_TWICE = 50
"""In a table of at least so many rows, a word that stands in one row only is left out."""


def learn_text(name: str, values: Array, form: str) -> Learned:
    """Learn how rare each hashed word is, and the directions in which the texts differ most."""
    counts = _word_counts(values, form)
    rows = counts.shape[0]
    frequency = np.bincount(counts.indices, minlength=BUCKETS)
    used = np.flatnonzero((frequency >= (2 if rows >= MET_TWICE else 1)) & (frequency < max(rows, 2)))
    if not used.size:
        return Learned("no word stands in two rows", ())
    weight = np.log((1 + rows) / (1 + frequency[used])) + 1.0
    weighed = _weigh(counts[:, used], weight)
    directions = _directions(weighed, min(TEXT_COLUMNS, used.size, rows))
    spread = float((weighed @ directions.T).std(axis=0).max())
    gaps = any(one is None for one in values)
    names = [f"{name} ~{at}" for at in range(len(directions))] + [f"{name} is missing"] * gaps
    how = f"TF-IDF of {used.size:,} hashed {form}, reduced to {len(directions)} columns"
    plain = {"form": form, "gaps": gaps, "scale": spread if spread > 1e-12 else 1.0}
    arrays = {"used": used, "weight": weight.astype(np.float32), "directions": directions.astype(np.float32)}
    return Learned(how + (", one for missing" if gaps else ""), tuple(names), plain, arrays)


def encode_text(learned: Learned, values: Array) -> Floats:
    """Project texts on the learned directions; a missing one is 0 in all of them."""
    of, arrays = learned.plain, learned.arrays
    counts = _word_counts(values, of["form"])[:, arrays["used"]]
    weighed = _weigh(counts, arrays["weight"].astype(np.float64))
    found = weighed @ arrays["directions"].astype(np.float64).T / of["scale"]
    gaps = np.array([one is None for one in values], dtype=np.float64)
    return np.column_stack([found, gaps] if of["gaps"] else [found])


def _directions(weighed: Any, width: int) -> Array:
    """Return the right singular vectors of the largest singular values, `[width, words]`."""
    if width == min(weighed.shape):  # all of them, for which the sparse solver is not made
        return np.linalg.svd(weighed.toarray(), full_matrices=False)[2]
    from sklearn.decomposition import TruncatedSVD

    return np.asarray(TruncatedSVD(width, n_iter=7, random_state=0).fit(weighed).components_)


def _word_counts(values: Array, form: str) -> Any:
    from sklearn.feature_extraction.text import HashingVectorizer

    style: dict[str, Any] = {"analyzer": "char_wb", "ngram_range": (2, 4)}
    if form == "words":
        style = {"analyzer": "word", "token_pattern": r"(?u)\b\w+\b"}
    hashing = HashingVectorizer(n_features=BUCKETS, alternate_sign=False, norm=None, **style)
    return hashing.transform(["" if one is None else one for one in values]).tocsr()


def _weigh(counts: Any, weight: Array) -> Any:
    from sklearn.preprocessing import normalize

    weighed = counts.copy()
    weighed.data = (1.0 + np.log(weighed.data)) * weight[weighed.indices]
    return normalize(weighed)


def learn_sentences(name: str, values: Array, folder: str) -> Learned:
    """Let a sentence model from a local folder read the texts, and learn the scale of what it says."""
    found = _sentences(values, folder)
    spread = float(found.std(axis=0).max())
    names = tuple(f"{name} ~{at}" for at in range(found.shape[1]))
    plain = {"folder": str(Path(folder).resolve()), "scale": spread if spread > 1e-12 else 1.0}
    how = f"{found.shape[1]} columns of the sentence model in {folder}"
    return Learned(how, names, plain, {"mean": found.mean(axis=0)})


def encode_sentences(learned: Learned, values: Array) -> Floats:
    """Read texts with the model of the fit, from the same folder."""
    found = _sentences(values, learned.plain["folder"]) - learned.arrays["mean"]
    return np.asarray(found / learned.plain["scale"])


def _check_modules(path: Path) -> None:
    """Refuse a sentence model with modules of its own, which its library would run from the folder."""
    if path.is_file():
        check_values(MODULES, parse_json(path.read_bytes(), path, InputError), path, words="cannot be used")


def _sentences(values: Array, folder: str) -> Floats:
    if not Path(folder).is_dir():
        raise InputError(
            f"there is no folder {folder} with a sentence model; without --text-model none is needed"
        )
    _check_modules(Path(folder) / "modules.json")
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError:
        raise InputError("a sentence model needs its library: pip install 'h3gnn[text]'") from None
    model = SentenceTransformer(str(folder), local_files_only=True)
    texts = ["" if one is None else one for one in values]
    return np.asarray(model.encode(texts, show_progress_bar=False), dtype=np.float64)
