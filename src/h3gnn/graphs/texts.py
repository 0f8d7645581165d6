"""Columns of free text: hashed TF-IDF reduced to the directions in which the texts differ most.

Words, or runs of two to four characters, are hashed, so that there is no vocabulary to keep and any language
will do. A sentence model from a local folder can read the texts instead.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from h3gnn.errors import InputError
from h3gnn.graphs.encoders import Array, Floats, Learned
from h3gnn.storage.schema import Listed, Plain, Record, Text, check_values, parse_json

BUCKETS = 1 << 15
"""Words are hashed into so many places before they are reduced."""

MODULES = Listed(
    Record(
        {"type": Text(r"sentence_transformers\.[\w.]+", "a class of sentence_transformers")}, others=Plain()
    )
)
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
