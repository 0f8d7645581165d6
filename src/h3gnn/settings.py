"""The settings of `H3GNN`: what each one is, which values it takes, which are the method's, and the presets.

`SETTINGS` is the one list. Checks, `--set`, the reference and the records of runs and results draw on it, so
that a new setting is one entry here and one argument of the estimator.
"""

from __future__ import annotations

import json
import numbers
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from h3gnn.errors import InputError, check_choice, check_number, check_whole
from h3gnn.storage.schema import (
    ORIGIN,
    Checked,
    Listed,
    Maybe,
    Named,
    Number,
    Plain,
    Record,
    Text,
    Whole,
    check_values,
    parse_json,
)

PURPOSES = ("log", "run", "result", "preset")
"""Why settings are written down; what one purpose leaves out, the next ones leave out too.

A log tells all but what is shown on the screen. Two commands may belong to one run whatever device they name.
A result names its device and seeds elsewhere. A preset is for any machine and any size of graph.
"""


@dataclass(frozen=True)
class Setting:
    """One argument of `H3GNN`.

    Attributes:
        group: under which heading it stands.
        help: one line for the person who sets it.
        check: raises an `InputError` for a value that it cannot have, given its name and the value.
        values: which values it takes, in words.
        words: values that are words, which `--set` takes as they are.
        may_be_none: whether None is a value too.
        left_out_of: the first of `PURPOSES` to which it does not belong; None is a setting of the method.
    """

    group: str
    help: str
    check: Callable[[str, Any], object] = lambda name, value: None
    values: str = ""
    words: tuple[str, ...] = ()
    may_be_none: bool = False
    left_out_of: str | None = None


def whole(group: str, least: int, text: str, most: int | None = None, **more: Any) -> Setting:
    """Return a setting that is a whole number of at least `least`, and at most `most`.

    An upper bound is far beyond all use: it is for a slip of the finger, before memory is asked for.
    """
    values = f"{least}, …" if most is None else f"{least} to {most:,}"
    return Setting(group, text, lambda name, value: check_whole(name, value, least, most), values, **more)


def number(
    group: str, least: float, below: float, text: str, *, closed: bool = False, word: str = ""
) -> Setting:
    """Return a setting that is a number in a range, or the one word that is given."""

    def check(name: str, value: Any) -> None:
        if isinstance(value, str) and word:
            if value != word:
                raise InputError(f"{name} must be {word!r} or a number, not {value!r}")
            return
        check_number(name, value, least, below, closed=closed)

    values = f"[{least:g}, {below:g}{']' if closed else ')'}"
    return Setting(group, text, check, f'"{word}", {values}' if word else values, (word,) if word else ())


def choice(group: str, words: tuple[str, ...], text: str, *, several: bool = False, **more: Any) -> Setting:
    """Return a setting that is one of some words, or, with `several`, a list of them."""

    def check(name: str, value: Any) -> None:
        for one in value if several and isinstance(value, list | tuple) and value else [value]:
            check_choice(name, one, words)

    return Setting(group, text, check, ", ".join(f'"{word}"' for word in words), words, **more)


def flag(group: str, text: str, **more: Any) -> Setting:
    """Return a setting that is True or False."""

    def check(name: str, value: Any) -> None:
        if isinstance(value, str) or str(value) not in ("True", "False", "0", "1"):  # numpy's too
            raise InputError(f"{name} must be True or False, not {value!r}")

    return Setting(group, text, check, "True, False", **more)


def _check_fan_out(name: str, value: Any) -> None:
    for one in value if isinstance(value, list | tuple) else [value]:
        is_whole = isinstance(one, numbers.Integral) and not isinstance(one, bool)
        if not is_whole or not (one >= 1 or one == -1):
            raise InputError(f"{name} must be a number of neighbours per hop, or -1 for all, not {value!r}")


LARGEST_SEED = 2**32 - 1
"""What numpy, scikit-learn and torch all take."""


def _check_seed(name: str, value: Any) -> None:
    if type(value).__name__ != "RandomState":  # numpy's, of which a seed is drawn
        check_whole(name, value, 0, LARGEST_SEED)


UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


def parse_memory(given: int | str) -> int:
    """Return bytes for a number of bytes or words such as "8GB", "512 MiB"."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", str(given))
    size = 0.0 if match is None else float(match[1]) * UNITS.get(match[2].upper(), 0)
    if isinstance(given, bool) or not 0 < size < 2**63:
        raise InputError(f"memory must be a size such as '8GB' or '512MiB', not {given!r}")
    return int(size)


ENCODER, GRAPH, MASKS, OBJECTIVE = "encoder", "graph", "views and masks", "objective"
OPTIMISATION, READ_OUT, MACHINE = "optimisation", "read-out", "machine and run"

SETTINGS: dict[str, Setting] = {
    "channels": whole(ENCODER, 1, "Width of a token.", 2**16),
    "hops": whole(ENCODER, 1, "How far the neighbourhood tokens reach.", 100),
    "least_layers": whole(ENCODER, 1, "Layers that even the 1-hop token has; at most `hops`.", 2),
    "hidden_channels": whole(
        ENCODER, 1, "Hidden width of the token MLP and the weighted GCNs.", 2**18, may_be_none=True
    ),
    "heads": whole(ENCODER, 1, "Attention heads; must divide `channels`."),
    "norm": choice(ENCODER, ("residual-post", "post", "pre"), "Place of the norm in the Transformer block."),
    "activation": choice(ENCODER, ("gelu", "relu"), "In the MLP of the Transformer block."),
    "fusion": choice(
        ENCODER,
        ("attention", "hierarchical", "mlp"),
        "How tokens are fused: all at once, the hops first, or, as an ablation, without attention.",
    ),
    "output": choice(
        ENCODER, ("flatten", "first", "max"), "All tokens, only the first, or the largest over them."
    ),
    "batch_norm": flag(ENCODER, "Batch norm between the layers of a weighted GCN."),
    "token_dropout": number(ENCODER, 0, 1, "Dropout rate of tokens in training."),
    "attention_dropout": number(ENCODER, 0, 1, "Dropout rate of attention in training."),
    "undirected": flag(GRAPH, "Let messages flow both ways along each edge."),
    "self_loops": flag(GRAPH, "Whether a node's neighbourhood includes itself."),
    "normalize": flag(GRAPH, "Multiply each learned edge weight with its entry of Ã."),
    "edge_start": number(GRAPH, 0, 1, "Where edge weights start.", closed=True, word="normalized"),
    "edge_weights": choice(
        GRAPH,
        ("fixed", "free", "learned", "computed"),
        "One number per edge: as in Ã, learned without bounds, learned in (0, 1), or from both ends.",
    ),
    "edge_rate": number(GRAPH, 0, 1000, "Of learned edge weights: their share of the learning rate."),
    "scale_features": choice(GRAPH, ("auto", "none", "rows", "columns"), "How features are scaled."),
    "n_neighbors": whole(GRAPH, 1, "Nearest rows to which each row of a table without edges is joined."),
    "feature_drop": number(
        MASKS, 0, 1, "Chance of a feature column to be hidden; `auto` is the objective's own.", word="auto"
    ),
    "edge_drop": number(
        MASKS, 0, 1, "Chance of an edge to be hidden; `auto` is the objective's own.", word="auto"
    ),
    "mask": choice(MASKS, ("random", "difficulty", "probability"), "How the nodes to mask are drawn."),
    "mask_ratio": number(MASKS, 0, 1, "Share of nodes to mask; `auto` is the objective's own.", word="auto"),
    "exploit_ratio": number(MASKS, 0, 1, "Share of the mask that difficulty decides.", closed=True),
    "mask_size": choice(
        MASKS,
        ("bounded", "exact", "free"),
        "Nodes in a probability mask: near ⌊N·R⌋, just as many, or as drawn.",
    ),
    "swap_ratio": number(
        MASKS, 0, 1, "Share of masked nodes that show another node's features, not the mask token."
    ),
    "mask_warmup": whole(MASKS, 0, "Epochs with random masks at the start."),
    "mask_token": choice(MASKS, ("normal", "zero"), "Where the learnable mask token starts."),
    "objective": choice(
        OBJECTIVE,
        ("teacher", "decorrelation", "neighbours", "edges", "features", "masked-features"),
        "What each model is asked for: one objective, or a list that is dealt out.",
        several=True,
    ),
    "targets": choice(
        OBJECTIVE, ("standardized", "plain"), "The teacher's columns, brought to one scale or not."
    ),
    "loss": choice(
        OBJECTIVE,
        ("squared", "cosine", "scaled-cosine"),
        "Of the objective `teacher`: squared distance, 1 − cosine, or the square of that.",
    ),
    "teacher_mode": choice(OBJECTIVE, ("eval", "train"), "The teacher without dropout, or with it."),
    "momentum": number(OBJECTIVE, 0, 1, "Of the teacher's moving average.", closed=True),
    "epochs": whole(OPTIMISATION, 0, "Training steps."),
    "learning_rate": number(OPTIMISATION, 0, 10, "Of Adam."),
    "weight_decay": number(OPTIMISATION, 0, 10, "Of Adam."),
    "schedule": choice(OPTIMISATION, ("cosine", "constant"), "The learning rate after the warm-up."),
    "lr_warmup": whole(OPTIMISATION, 0, "Epochs over which the learning rate rises."),
    "nodes_per_step": Setting(
        OPTIMISATION,
        "Compare so many nodes in each step, drawn anew; `auto` is half of them, and at least 8,192.",
        lambda name, value: value == "auto" or check_whole(name, value, 2),
        '"auto", 2, …',
        ("auto",),
        may_be_none=True,
    ),
    "n_models": whole(OPTIMISATION, 1, "Train so many models and join their embeddings.", 10_000),
    "tokens": flag(READ_OUT, "Put the tokens beside the fused embedding."),
    "smoothing": number(
        READ_OUT,
        -0.99,
        0.99,
        "Above 0, mean along the edges; below 0, set off against neighbours; `auto` looks at the features.",
        closed=True,
        word="auto",
    ),
    "smoother": choice(READ_OUT, ("walks", "powers"), "Smooth along random walks, or by powers of Ã."),
    "precision": choice(MACHINE, ("auto", "float32", "bfloat16"), "Of the fusion block in training."),
    "feature_storage": choice(MACHINE, ("auto", "csr", "dense"), "How features lie in memory."),
    "batch_size": whole(
        MACHINE, 1, "Train on so many nodes at a time, not on all.", may_be_none=True, left_out_of="preset"
    ),
    "fan_out": Setting(
        MACHINE,
        "Neighbours per node and hop, e.g. `10,5`; -1 is all.",
        _check_fan_out,
        "1, …, -1, or one for each hop",
        may_be_none=True,
        left_out_of="preset",
    ),
    "batches": choice(
        MACHINE, ("neighbours", "clusters"), "What a batch is (clusters need pymetis).", left_out_of="preset"
    ),
    "memory": Setting(
        MACHINE,
        "A budget, e.g. `8GB`: picks how many nodes to work on at a time.",
        lambda name, value: parse_memory(value),
        '"8GB", "512MiB", bytes',
        may_be_none=True,
        left_out_of="preset",
    ),
    "random_state": Setting(
        MACHINE,
        "The same seed gives the same result.",
        _check_seed,
        f"0 to {LARGEST_SEED:,}",
        may_be_none=True,
        left_out_of="result",
    ),
    "device": Setting(
        MACHINE, "Where to compute: auto, cpu or cuda.", values='"auto", "cpu", "cuda", …', left_out_of="run"
    ),
    "verbose": flag(MACHINE, "Show a progress bar.", left_out_of="log"),
}


BEFORE: dict[str, Any] = {
    "targets": "plain",
    "feature_drop": 0.0,
    "edge_drop": 0.0,
    "edge_weights": "learned",
    "edge_rate": 1.0,
    "nodes_per_step": None,
    "tokens": False,
    "smoother": "walks",
    "mask_size": "bounded",
    "loss": "squared",
    "swap_ratio": 0.0,
    "least_layers": 1,
    "activation": "gelu",
}
"""What was so before there was a setting for it: presets and results that do not name it were made so."""


def _stored(name: str, setting: Setting) -> Any:
    if name == "random_state":
        return Maybe(Whole(0))
    kind = Text() if name == "device" else Checked(setting.check)
    return Maybe(kind) if setting.may_be_none else kind


STORED = Record({}, {name: _stored(name, setting) for name, setting in SETTINGS.items()})
"""Settings as files hold them: any of the names, each with a value that it can have."""
TRIAL = Record(
    {
        "number": Whole(0),
        "state": Text(),
        "params": Named(Plain()),
        "smoothing": Maybe(Number()),
        "curve": Named(Number(any_float=True)),
    },
    {"seed": Maybe(Whole(0))},
)
FINALIST = Record({"params": Named(Plain()), "looks": Listed(Listed(Number(any_float=True), 3, 3))})
PRESET = Record(
    {"params": STORED},
    {
        "about": Text(),
        "tuned": Record({}, {"origin": ORIGIN}, Plain()),
        "command": Listed(Text()),
        "search": Named(Plain()),
        "trials": Listed(TRIAL),
        "finalists": Listed(FINALIST),
    },
)
"""A preset, or the record of `h3gnn tune`: a preset, what was asked for, and every trial."""


def check_arguments(given: Mapping[str, Any]) -> None:
    """Check every setting on its own, then those that must fit together."""
    for name, setting in SETTINGS.items():
        if given[name] is not None or not setting.may_be_none:
            setting.check(name, given[name])
    if isinstance(given["fan_out"], list | tuple) and len(given["fan_out"]) != given["hops"]:
        raise InputError(f"fan_out gives {len(given['fan_out'])} hop(s), but hops is {given['hops']}")
    if given["fusion"] != "mlp" and given["channels"] % given["heads"]:
        raise InputError(
            f"channels ({given['channels']}) must be a multiple of heads ({given['heads']}), "
            "since each head gets an equal share of a token"
        )
    if given["least_layers"] > given["hops"]:
        raise InputError(
            f"least_layers ({given['least_layers']}) must not be more than hops ({given['hops']}), "
            "since no token may hear further than that"
        )
    if given["edge_weights"] in ("free", "learned") and given["batch_size"] is not None:
        raise InputError(
            f'edge_weights="{given["edge_weights"]}" needs full-graph training: leave batch_size out, '
            'or choose edge_weights="fixed" (--set edge_weights=fixed)',
            code="learned-edges-need-full-graph",
        )
    if given["edge_weights"] == "free" and given["edge_start"] == 0:
        raise InputError('edge_start must be above 0 for edge_weights="free": at 0 no message has a slope')


def kept_for(purpose: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that one of `PURPOSES` writes down, numpy's numbers as Python's own."""
    reached = PURPOSES[: PURPOSES.index(purpose) + 1]
    left_out = {name for name, setting in SETTINGS.items() if setting.left_out_of in reached}
    return {name: as_plain(value) for name, value in params.items() if name not in left_out}


def as_plain(value: Any) -> Any:
    """Return numpy's numbers, words and arrays as Python's own, which JSON can hold; all else as it is."""
    if hasattr(value, "tolist") and hasattr(value, "dtype"):
        return value.tolist()
    return [as_plain(one) for one in value] if isinstance(value, list | tuple) else value


def by_group() -> dict[str, list[str]]:
    """Return the names of the settings under the headings of their groups."""
    return {
        group: [name for name, setting in SETTINGS.items() if setting.group == group]
        for group in dict.fromkeys(setting.group for setting in SETTINGS.values())
    }


def parse_value(name: str, text: str) -> Any:
    """Return the number, truth value, nothing or word that a text stands for as the value of a setting."""
    text = text.strip()
    if name in SETTINGS and text in SETTINGS[name].words:  # "none" is a word for some
        return text
    several = [one.strip() for one in text.split(",")]
    if name in SETTINGS and len(several) > 1 and all(one in SETTINGS[name].words for one in several):
        return several
    words = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    try:
        return json.loads(text)
    except ValueError:
        return text


@cache
def _shipped() -> dict[str, dict[str, Any]]:
    stored = sorted((files("h3gnn") / "tuned").iterdir(), key=lambda entry: entry.name)
    return {
        entry.name.removesuffix(".json"): json.loads(entry.read_text(encoding="utf-8"))
        for entry in stored
        if entry.name.endswith(".json")
    }


NAMED_PRESETS = ("paper", "released", "later", "single", "quick")
"""The presets that are for any graph: the paper and its variants, one small model, people in a hurry."""


def tuned_presets() -> dict[str, dict[str, Any]]:
    """Return the presets that a search made, each with its `params` and, under `tuned`, how it was made."""
    return {name: kept for name, kept in _shipped().items() if "tuned" in kept}


def preset_names() -> list[str]:
    """Return the names of all presets."""
    return [*NAMED_PRESETS, *tuned_presets()]


def tuned_on(name: str) -> str | None:
    """Return the hash of the graph on whose splits, all together, a preset was chosen; None for any other."""
    made = _content(name).get("tuned", {})
    together = made.get("objective") != "label-free" and made.get("protocol") != "no labels"
    return made.get("sha256") if together else None


def preset(name: str) -> dict[str, Any]:
    """Return the settings that a preset sets.

    Args:
        name: one of `NAMED_PRESETS`, the name of a benchmark graph, or a file that `h3gnn tune` wrote.

    Raises:
        InputError: when there is no such preset, or the file is none.
    """
    return {**BEFORE, **_content(name)["params"]}


def _content(name: str) -> dict[str, Any]:
    """Return what a shipped preset, or one in a file, holds."""
    if name in _shipped():
        return _shipped()[name]
    if not name.endswith(".json"):
        names = ", ".join(preset_names())
        raise InputError(f"there is no preset {name!r}; the presets are {names}, or a file of `h3gnn tune`")
    try:
        content = Path(name).read_bytes()
    except FileNotFoundError:
        raise InputError(f"there is no file {name}, and no preset of that name") from None
    except OSError as error:
        raise InputError(f"{name} cannot be read as a preset: {error}") from None
    kept = parse_json(content, name, InputError, "is not a preset")
    check_values(PRESET, kept, name, InputError, "is not a preset")
    return dict(kept)
