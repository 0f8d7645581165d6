"""The schema of the file that `compare --out` writes."""

from __future__ import annotations

from h3gnn.evaluation.metrics import TITLES
from h3gnn.evaluation.protocols import EVERY
from h3gnn.storage.schema import (
    ORIGIN,
    SHA256,
    VERSIONS,
    Grid,
    Kind,
    Listed,
    Maybe,
    Named,
    Number,
    Plain,
    Record,
    Text,
    Whole,
    Word,
)

COMPARISON_FORMAT = "h3gnn comparison"
MEASURED = Number(any_float=True)
SHARES = Grid(Maybe(Number(-1, 1)))
SCORE = Record(
    {
        "test_mean": Maybe(Number()),
        "test_std": Maybe(Number()),
        "interval95": Maybe(Listed(Number(), 2, 2)),
        "per_split": SHARES,
    }
)
BESIDE = [name for name in TITLES if name != "accuracy"]
PROBE = Record(
    {
        **SCORE.fields,
        "macro_f1": SCORE,
        "roc_auc": Maybe(SCORE),
        "validation_mean": Maybe(Number()),
        "validation": SHARES,
    },
    dict.fromkeys(BESIDE, SCORE),
)
ABOUT: dict[str, Kind] = {
    "method": Text(),
    "graph": Text(),
    "sha256": SHA256,
    "protocol": Word(tuple(EVERY)),
    "epoch_rule": Text(),
    "probe": PROBE,
    "clustering": Maybe(Named(Plain())),
    "params": Named(Plain()),
    "seeds": Listed(Whole(0)),
    "versions": VERSIONS,
    "device": Text(),
    "seconds": Number(0),
}
MORE: dict[str, Kind] = {
    "part": Text(),
    "protocol_in_words": Text(),
    "leading": Text(),
    "rare_class": Text(),
    "k": Maybe(Whole(1)),
    "origin": Maybe(ORIGIN),
}
RESULT = Record({**ABOUT, "chosen": Listed(Listed(Named(Plain())))}, MORE)
"""A `Result`, as a comparison keeps it."""
KEPT = Record({"key": Named(Plain()), "result": RESULT})
COMPARISON = Record(
    {"format": Word((COMPARISON_FORMAT,)), "comparison": Maybe(Named(Plain())), "methods": Named(KEPT)}
)
"""What `compare --out` writes."""
