"""A preset from a list of settings drawn beforehand, and what such a choice is worth on unseen nodes.

The preset is what all splits like best together, since it is one setting for the whole graph. What tuning
like this is worth is told by `nested`: there each split has its own choice, and its test nodes only score it.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from h3gnn.baselines import Progress, unwatched
from h3gnn.errors import InputError
from h3gnn.estimator import H3GNN
from h3gnn.evaluation.protocols import NESTED, POOLED
from h3gnn.experiments.allowances import Allowance, Changes, check_varied
from h3gnn.experiments.methods import METHODS
from h3gnn.experiments.nested import Searched, run_nested
from h3gnn.experiments.spaces import Space, with_objectives
from h3gnn.experiments.tune import Tuned, start_of
from h3gnn.experiments.tuning import FIXED
from h3gnn.graphs.graph import Graph, first_splits
from h3gnn.settings import kept_for


def tune_from_list(
    graph: Graph,
    space: Space,
    allowance: Allowance,
    *,
    models: int,
    study: str,
    device: str,
    seed: int = 0,
    splits: int | None = None,
    watch: Progress = unwatched,
) -> Tuned:
    """Try a list of settings, and return what all splits like best, with the estimate of `nested`.

    Args:
        graph: with labels and splits.
        space: what the settings are drawn from.
        allowance: how many, and how long. Where it has looks, all train with a constant learning rate until
            the last of them.
        models: `n_models` of every trial and of the result.
        study: a name for it.
        device: "auto", "cpu", "cuda".
        seed: of the trainings.
        splits: let the first few splits choose, and score them, only.
        watch: told the share of the work that is done.
    """
    ranges = space.choices
    if "n_models" in ranges:
        raise InputError("--choices n_models: every setting has as many models as the preset: give --models")
    method = replace(METHODS["h3gnn"], title="H3GNN, tuned", ranges=ranges)
    lengths = {"epochs": allowance.looks} if allowance.looks else {}
    check_varied({**ranges, **lengths}, allowance.trials, method.title)
    length = {**FIXED, "epochs": allowance.looks[-1]} if allowance.looks else {}
    if ranges.keys() & length.keys():
        raise InputError(
            "--epochs says after how many epochs each setting is looked at, with a constant learning rate: "
            "leave out --epochs, or --choices for epochs and schedule"
        )
    model = H3GNN(**{**_start_within(space), **length, "n_models": models})
    some = first_splits(graph, splits)
    found = run_nested(
        method, some, seeds=[seed], allowance=allowance, model=model, device=device, watch=watch
    )
    about = {"by": "h3gnn tune", "study": study, "graph": graph.provenance.source}
    return preset_from(found, {**about, "sha256": graph.provenance.sha256}, splits)


def _start_within(space: Space) -> Changes:
    """Return the settings that the list begins with: the space's start, where a choice does not forbid it."""
    start = start_of(space)
    if not isinstance(start["objective"], str):
        start["objective"] = "+".join(start["objective"])  # as a space writes it
    first = {name: values[0] for name, values in space.choices.items() if start[name] not in values}
    return with_objectives({**start, **first})


def preset_from(found: Searched, about: Mapping[str, Any], splits: int | None = None) -> Tuned:
    """Return what a search liked best as a preset, with its record.

    Args:
        found: of `run_nested`.
        about: who made it, and on which graph.
        splits: how many of the first splits it was asked for; None is all.
    """
    nested = found.results[NESTED.name]
    return preset_of(found.record, found.chosen, nested.as_dict(), about, splits)


def preset_of(
    record: Mapping[str, Any],
    chosen: Changes,
    nested: Mapping[str, Any],
    about: Mapping[str, Any],
    splits: int | None = None,
) -> Tuned:
    """Return the same from plain values, such as a stored cell's.

    Args:
        record: every setting that was tried.
        chosen: what all splits like best.
        nested: the row of `nested`.
        about: who made it, and on which graph.
        splits: how many of the first splits it was asked for; None is all.
    """
    settings = {**H3GNN().get_params(), **record["settings"]}
    params = kept_for("preset", with_objectives({**settings, **chosen}))
    looks = [_look(one, record) for one in record["candidates"]]
    taken = [{**record["tried"][trial], **at} for trial, at, _ in record["candidates"]].index(chosen)
    winner, *_, best = looks[taken]
    seed = nested["seeds"][0]
    made = {
        **about,
        "protocol": POOLED.name,
        "objective": "validation",
        "score": best,
        "scored_by": "ridge regression on dealt training and validation nodes, all splits together",
        "nested": _worth(nested),
        "trials": len(record["tried"]),
        "trainings": len(record["tried"]),
        "repeats": 0,
        "seed": seed,
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        **{name: nested[name] for name in ("versions", "origin") if name in nested},
    }
    asked = {
        "space": record["ranges"],
        "allowed": record["allowed"],
        "rungs": record["allowed"]["looks"],
        "at_once": 1,
        "joined": params["n_models"],
        **{"seed": seed, "objective": "validation", "splits": splits},
    }
    trials = [_trial(number, drawn, looks, seed) for number, drawn in enumerate(record["tried"])]
    finalist = {"params": record["tried"][winner], "looks": [look[1:] for look in looks if look[0] == winner]}
    return Tuned(params, made, {"search": asked, "trials": trials, "finalists": [finalist]})


def _worth(nested: Mapping[str, Any]) -> dict[str, Any]:
    """Return what such tuning is worth on unseen nodes, and which trial each split chose."""
    chosen = nested["chosen"]  # of each seed and split; a cell keeps it in columns
    trials = chosen["trial"][0] if isinstance(chosen, dict) else [one["trial"] for one in chosen[0]]
    return {
        "test_mean": nested["probe"]["test_mean"],
        "test_std": nested["probe"]["test_std"],
        "trials": trials,
        "in_words": "test accuracy where each split chose by its own nodes from the same list",
    }


def _look(candidate: Sequence[Any], record: Mapping[str, Any]) -> list[Any]:
    """Return trial, epochs, smoothing, and the mean over splits of how their own nodes liked it."""
    trial, at, own = candidate
    known = {**record["settings"], **record["tried"][trial], **at}
    smoothing = known["smoothing"] if isinstance(known["smoothing"], int | float) else 0.0
    return [trial, known["epochs"], smoothing, round(float(np.mean(own)), 5)]


def _trial(number: int, drawn: Changes, looks: Sequence[list[Any]], seed: int) -> dict[str, Any]:
    own = [look for look in looks if look[0] == number]
    best = max(own, key=lambda look: look[3])
    curve: dict[str, float] = {}
    for _, epochs, _, score in own:
        curve[str(epochs)] = round(max(score, curve.get(str(epochs), 0.0)), 5)
    return {
        "number": number,
        "state": "complete",
        "params": drawn,
        "smoothing": best[2],
        "curve": curve,
        "seed": seed,
    }
