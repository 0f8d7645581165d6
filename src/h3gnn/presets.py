"""Named settings of the estimator: the paper's equations, and what a search found for each benchmark."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from h3gnn.errors import InputError

PASSING = ("random_state", "device", "verbose", "memory", "batch_size", "fan_out", "batches")
"""Arguments of `H3GNN` that belong to a machine or a run, not to a configuration."""

# The paper's equations as printed. What it leaves open is named in docs/method.md.
PAPER: dict[str, Any] = {
    "channels": 128,
    "hops": 2,
    "hidden_channels": None,
    "heads": 4,
    "norm": "residual-post",
    "fusion": "attention",
    "output": "flatten",
    "smoothing": 0.0,
    "edge_start": "normalized",
    "self_loops": True,
    "normalize": False,
    "batch_norm": False,
    "undirected": True,
    "objective": "teacher",
    "teacher_mode": "eval",
    "momentum": 0.99,
    "mask": "probability",
    "mask_ratio": 0.5,
    "exploit_ratio": 0.5,
    "mask_warmup": 20,
    "mask_token": "normal",
    "epochs": 200,
    "learning_rate": 0.005,
    "weight_decay": 0.0005,
    "lr_warmup": 10,
    "token_dropout": 0.1,
    "attention_dropout": 0.1,
    "n_models": 1,
    "scale_features": "none",
}


@cache
def tuned_presets() -> dict[str, dict[str, Any]]:
    """Return the shipped presets by name, each with its `params` and, under `tuned`, how it was made."""
    folder = files("h3gnn") / "tuned"
    stored = [e for e in folder.iterdir() if e.name.endswith(".json")] if folder.is_dir() else []
    return {
        entry.name.removesuffix(".json"): json.loads(entry.read_text(encoding="utf-8"))
        for entry in sorted(stored, key=lambda entry: entry.name)
    }


def preset_names() -> list[str]:
    """Return the names of all presets."""
    return ["paper", *tuned_presets()]


def preset(name: str) -> dict[str, Any]:
    """Return the arguments that a preset sets.

    Args:
        name: "paper", the name of a benchmark graph, or a file that `h3gnn tune` wrote.

    Raises:
        InputError: when there is no such preset, or the file is none.
    """
    if name == "paper":
        return dict(PAPER)
    if name in tuned_presets():
        return dict(tuned_presets()[name]["params"])
    if name.endswith(".json"):
        return _read(Path(name))
    raise InputError(
        f"there is no preset {name!r}; the presets are {', '.join(preset_names())}, or a file of `h3gnn tune`"
    )


def _read(path: Path) -> dict[str, Any]:
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"there is no file {path}, and no preset of that name") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read as a preset: {error}") from None
    params = kept.get("params") if isinstance(kept, dict) else None
    if not isinstance(params, dict):
        raise InputError(f'{path} is not a preset: it has no "params"')
    return params
