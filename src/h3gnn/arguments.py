"""Checks of the estimator's arguments, where they are used, in words for the person who gave them."""

from __future__ import annotations

import math
import numbers
from collections.abc import Collection
from typing import Any

import numpy as np

from h3gnn.errors import InputError
from h3gnn.smoothing import LIMIT


def check_whole(name: str, value: Any, least: int) -> int:
    """Return a whole number that is at least `least`."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < least:
        raise InputError(f"{name} must be a whole number of at least {least}, not {value!r}")
    return int(value)


def check_number(name: str, value: Any, least: float, below: float, *, closed: bool = False) -> float:
    """Return a number in [least, below), or [least, below] when `closed`."""
    number = float(value) if isinstance(value, numbers.Real) and not isinstance(value, bool) else math.nan
    if not least <= number <= below or (number == below and not closed):
        raise InputError(f"{name} must lie in [{least:g}, {below:g}{']' if closed else ')'}, not {value!r}")
    return number


def check_choice(name: str, value: Any, choices: Collection[str]) -> str:
    """Return one of the choices."""
    if not isinstance(value, str) or value not in choices:
        raise InputError(f"{name} must be one of {', '.join(map(repr, choices))}, not {value!r}")
    return value


def check_arguments(given: dict[str, Any]) -> None:
    """Check every argument of the estimator on its own, then those that must fit together."""
    for name, smallest in _WHOLE.items():
        check_whole(name, given[name], smallest)
    for name, (least, below, closed) in _NUMBERS.items():
        check_number(name, given[name], least, below, closed=closed)
    for name, choices in CHOICES.items():
        check_choice(name, given[name], choices)
    if given["hidden_channels"] is not None:
        check_whole("hidden_channels", given["hidden_channels"], 1)
    _check_batches(given)
    if given["edge_start"] != "normalized":
        if isinstance(given["edge_start"], str):
            raise InputError(f"edge_start must be 'normalized' or a number, not {given['edge_start']!r}")
        check_number("edge_start", given["edge_start"], 0, 1, closed=True)
    if given["fusion"] == "attention" and given["channels"] % given["heads"]:
        raise InputError(
            f"channels ({given['channels']}) must be a multiple of heads ({given['heads']}), "
            "since each head gets an equal share of a token"
        )


def _check_batches(given: dict[str, Any]) -> None:
    """Check the arguments of mini-batches and the memory budget."""
    check_choice("batches", given["batches"], ("neighbours", "clusters"))
    if given["batch_size"] is not None:
        check_whole("batch_size", given["batch_size"], 1)
    fan_out = given["fan_out"]
    if fan_out is not None:
        every = fan_out if isinstance(fan_out, list | tuple) else [fan_out] * given["hops"]
        if not all(_is_fan_out(one) for one in every):
            raise InputError(
                f"fan_out must be a number of neighbours per hop, or -1 for all, not {fan_out!r}"
            )
        if len(every) != given["hops"]:
            raise InputError(f"fan_out gives {len(every)} hop(s), but hops is {given['hops']}")
    if given["memory"] is not None:
        from h3gnn.training.resources import parse_memory

        parse_memory(given["memory"])


def _is_fan_out(one: Any) -> bool:
    return isinstance(one, int | np.integer) and not isinstance(one, bool) and bool(one >= 1 or one == -1)


_WHOLE = {
    "channels": 1,
    "hops": 1,
    "heads": 1,
    "mask_warmup": 0,
    "epochs": 0,
    "lr_warmup": 0,
    "n_models": 1,
    "n_neighbors": 1,
}
_NUMBERS = {
    "token_dropout": (0.0, 1.0, False),
    "attention_dropout": (0.0, 1.0, False),
    "momentum": (0.0, 1.0, True),
    "mask_ratio": (0.0, 1.0, False),
    "exploit_ratio": (0.0, 1.0, True),
    "learning_rate": (0.0, 10.0, False),
    "weight_decay": (0.0, 10.0, False),
    "smoothing": (-LIMIT, LIMIT, True),
}
CHOICES = {
    "norm": ("residual-post", "post", "pre"),
    "fusion": ("attention", "mlp"),
    "output": ("flatten", "first"),
    "objective": ("teacher", "decorrelation", "neighbours", "edges", "features", "masked-features"),
    "targets": ("plain", "standardized"),
    "teacher_mode": ("eval", "train"),
    "mask": ("random", "difficulty", "probability"),
    "mask_token": ("normal", "zero"),
    "scale_features": ("auto", "none", "rows", "columns"),
    "schedule": ("cosine", "constant"),
    "precision": ("auto", "float32", "bfloat16"),
    "feature_storage": ("auto", "csr", "dense"),
}
