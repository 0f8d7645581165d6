"""What a study keeps with its trials, declared: a storage may be damaged, changed, or another program's."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from h3gnn.errors import InputError
from h3gnn.experiments import LARGEST_STACK
from h3gnn.experiments.spaces import Space
from h3gnn.schema import FieldError, Flag, Kind, Listed, Number, Plain, Record, Text, Whole

if TYPE_CHECKING:
    import optuna

    Trial = optuna.trial.FrozenTrial

SCORED: dict[str, Kind] = {"epochs": Whole(0), "smoothing": Number(), "best": Number(), "seed": Whole(0)}
TOLD = Record({name: SCORED[name] for name in ("best", "seed")}, SCORED, Plain())
"""What is kept with a trial that has a score."""
RESERVED = Record(
    {"stack": Text(), "place": Whole(0, LARGEST_STACK), "of": Whole(1, LARGEST_STACK)},
    {"results": Text()},
    Plain(),
)
"""What is kept with a trial of a stack."""
LOOK = Listed(Number(-1e9, 1e9), 2, 2)
RESULTS = Listed(Record({**SCORED, "curve": Listed(LOOK, least=1), "behind": Flag()}))
"""The scores of a stack."""
OF_OPTUNA = ("state", "values", "params", "distributions", "user_attrs", "intermediate_values")


def check_trials(study: optuna.Study, space: Space) -> None:
    """Refuse a study whose trials are not of this space, or were not made by a search of ours."""
    import optuna

    remedy = "give another name with --study"
    if study.directions != [optuna.study.StudyDirection.MAXIMIZE]:
        raise InputError(f"the study {study.study_name} was not made by `h3gnn tune`: {remedy}")
    trials, stacks = study.get_trials(deepcopy=False), defaultdict[str, list[Any]](list)
    for trial in trials:
        if _token(trial) is not None:
            stacks[str(_token(trial))].append(trial)
    for trial in trials:
        changed = _of_another_space(trial, space)
        if changed:
            raise InputError(
                f"the study {study.study_name} chose {changed} from other values (trial {trial.number}): "
                "give the same --space and --choices as before, or another name with --study"
            )
        try:
            _check(trial, space, stacks.get(str(_token(trial)), []))
        except FieldError as fault:
            raise InputError(
                f"trial {trial.number} of the study {study.study_name} was not made by `h3gnn tune`, or was "
                f"changed ({fault.field} {fault}): {remedy}"
            ) from None


def results_of(text: str) -> list[dict[str, Any]]:
    """Return the scores of a stack from the text that its first trial keeps.

    Raises:
        FieldError: where it is something else.
    """
    try:
        found: list[dict[str, Any]] = json.loads(text)
    except (ValueError, RecursionError):
        raise FieldError("results", "is not JSON") from None
    RESULTS.check(found, "results")
    return found


def _token(trial: Trial) -> Any:
    return trial.user_attrs.get("stack")


def _of_another_space(trial: Trial, space: Space) -> str:
    """Return the argument that a trial chose from other values; "" where there is none."""
    import optuna

    for name, values in space.proposed.items():
        known = trial.distributions.get(name)
        if known is not None and known != optuna.distributions.CategoricalDistribution(list(values)):
            return name
    return ""


def _check(trial: Trial, space: Space, stack: Sequence[Trial]) -> None:
    """Compare what is kept with a trial, and with the others of its stack, with what is declared."""
    import optuna

    told, is_finished = trial.user_attrs, trial.state.is_finished()
    if is_finished:
        try:  # what Optuna would not take when a next trial is proposed
            optuna.create_trial(**{name: getattr(trial, name) for name in OF_OPTUNA})
        except (ValueError, TypeError, KeyError) as error:
            raise FieldError("it", " ".join(str(error).split())[:120]) from None
    if is_finished and "best" in told:
        TOLD.check(told, "")
        Listed(Whole(0), least=1).check(list(trial.intermediate_values), "the epochs of its scores")
        Listed(Number()).check(list(trial.intermediate_values.values()), "scores")
    if not is_finished and stack:
        _check_stack(stack)
    if "best" in told or stack:
        missing = next((name for name in space.proposed if name not in trial.params), None)
        if missing is not None:
            raise FieldError(f"params.{missing}", "is missing")


def _check_stack(stack: Sequence[Trial]) -> None:
    for one in stack:
        RESERVED.check(one.user_attrs, "")
    first, size = stack[0].user_attrs, stack[0].user_attrs["of"]
    places = [one.user_attrs["place"] for one in stack]
    if places != list(range(len(stack))) or len(stack) > size:
        raise FieldError("place", "is not the next one of its stack")
    if "results" in first and len(results_of(first["results"])) != size:
        raise FieldError("results", f"must be those of {size} trial(s)")
