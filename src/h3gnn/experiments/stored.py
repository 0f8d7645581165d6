"""What `compare --out` and `reproduce` keep in files, declared: read, it is compared with this first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from h3gnn.errors import InputError
from h3gnn.evaluation.metrics import TITLES
from h3gnn.evaluation.protocols import EVERY
from h3gnn.storage.atomic import read_json
from h3gnn.storage.schema import (
    ORIGIN,
    SHA256,
    VERSIONS,
    FieldError,
    Flag,
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
    check_values,
    naming,
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
ROW = Record({**ABOUT, "chosen": Named(Grid(Plain()))}, MORE)
"""The same in few words, as a cell keeps it."""
KEPT = Record({"key": Named(Plain()), "result": RESULT})
COMPARISON = Record(
    {"format": Word((COMPARISON_FORMAT,)), "comparison": Maybe(Named(Plain())), "methods": Named(KEPT)}
)
"""What `compare --out` writes."""

MAP = Record(
    {
        "before": Listed(Listed(Whole(0)), 2, 2),
        "after": Listed(Listed(Whole(0)), 2, 2),
        "labels": Listed(Whole(-1)),
        "classes": Listed(Text()),
    }
)
COUNTS = ("nodes", "edges", "features", "classes", "splits")
HOMOPHILY = ("homophily", "node_homophily", "adjusted_homophily", "label_informativeness")
SETTLING = Record(
    {"distance": Grid(MEASURED), "gap": Grid(MEASURED), "moving": Listed(MEASURED, least=1)},
)
GRADIENTS = Record(dict.fromkeys(("smoothness", "convexity", "coupling"), Grid(MEASURED)))
MASKED = Record(
    {
        **dict.fromkeys(("shift", "error"), Grid(MEASURED)),
        **dict.fromkeys(("encoder", "decoder"), Listed(MEASURED, least=1)),
    }
)
OUTCOMES: dict[str, Record] = {
    "method": Record(
        {"rows": Listed(ROW, least=1), "record": Maybe(Named(Plain())), "chosen": Named(Plain())}
    ),
    "clustering": Record(
        {
            "choices": Named(Record({"changes": Named(Plain()), "values": Named(Listed(MEASURED, least=1))})),
            "tried": Whole(1),
            "searched_s": MEASURED,
        }
    ),
    "masks": Record({"shares": Named(MEASURED)}),
    "map": MAP,
    "efficiency": Record(
        {**dict.fromkeys(("memory_mb", "epoch_s", "total_s"), MEASURED), "epochs": Whole(0)}
    ),
    "convergence": Record(
        {
            "epochs": Listed(Whole(0), least=1),
            "rate": Text(),
            **dict.fromkeys(("descent", "adam"), SETTLING),
            "gradients": GRADIENTS,
            "masks": Record(dict.fromkeys(("untrained", "trained"), MASKED)),
            "rank": Grid(MEASURED),
            "validation": Grid(MEASURED),
        }
    ),
    "statistics": Record({**dict.fromkeys(COUNTS, Whole(0)), **dict.fromkeys(HOMOPHILY, MEASURED)}),
}
"""What comes out of each kind of cell."""
CELL = Record(
    {
        "kind": Word(tuple(OUTCOMES)),
        "graph": Text(),
        "params": Named(Plain()),
        "seeds": Listed(Whole(0)),
        "splits": Maybe(Whole(1)),
    }
)
CELLS = Named(
    Record(
        {
            "cell": CELL,
            "sha256": SHA256,
            "device": Text(),
            "versions": VERSIONS,
            "seconds": Number(0),
            "out": Named(Plain()),
        },
        {"origin": ORIGIN},
    ),
    "[0-9a-f]{16}",
)
"""A file of `results/cells`."""


CAME_FROM: dict[str, Kind] = {
    name: ABOUT[name]
    for name in ("method", "graph", "sha256", "device", "versions", "seconds", "params", "seeds")
}
PERCENT = {name: ABOUT[name] for name in ("method", "graph", "protocol", "sha256")} | {"percent": Number()}
TABLE: dict[str, Kind] = {
    "experiment": Text(),
    "title": Text(),
    "quick": Flag(),
    "seeds_at_most": Maybe(Whole(1)),
    "protocols": Named(Text()),
    "versions": VERSIONS,
    "missing": Listed(Text()),
}


def read_table(path: Path, name: str, rows: str, kind: str) -> dict[str, Any]:
    """Read a file of `results` whose rows are of a sort ("scored", "percent" or "measured").

    Args:
        path: the file.
        name: of its experiment.
        rows: the sort of its rows.
        kind: of the cells that they came from.
    """
    made: dict[str, Kind] = {"origin": Maybe(ORIGIN)}
    sorts = {
        "scored": ROW,
        "percent": Record(PERCENT, made),
        "measured": Record({**OUTCOMES[kind].fields, **CAME_FROM}, made),
    }
    content = read_json(path)
    declared = {**TABLE, "experiment": Word((name,)), "rows": Listed(sorts[rows])}
    check_values(Record(declared, made), content, path)
    return content


def check_cells(content: Any, path: Path) -> None:
    """Compare a file of cells with what it declares, each outcome with its kind."""
    words = "is damaged; remove it, and its cells run again"
    check_values(CELLS, content, path, InputError, words)
    with naming(path, InputError, words):
        for key, record in content.items():
            _check_outcome(record["cell"], record["out"], f"{key}.out")


def _check_outcome(cell: dict[str, Any], out: dict[str, Any], where: str) -> None:
    OUTCOMES[cell["kind"]].check(out, where)
    if cell["kind"] == "convergence":
        curves = {
            f"{way}.{name}": out[way][name] for way in ("descent", "adam") for name in ("distance", "gap")
        }
        for name, rows in {"validation": out["validation"], **curves}.items():
            if any(len(row) != len(out["epochs"]) for row in rows):
                raise FieldError(f"{where}.{name}", "must have a value for each epoch")
