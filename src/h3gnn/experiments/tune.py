"""What a study keeps with its trials, declared: a storage may be damaged, changed, or another program's."""

from __future__ import annotations

import contextlib
import datetime as dt
import gc
import json
import os
import socket
import time
import uuid
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from h3gnn.encoder import FeatureMatrix
from h3gnn.encoder.readout import Smoother
from h3gnn.errors import InputError, without_secrets
from h3gnn.estimator import H3GNN
from h3gnn.evaluation.criteria import (
    ClusterAccuracy,
    ClusterAgreement,
    ProbeAccuracy,
    RidgeValidation,
    ValidationAccuracy,
)
from h3gnn.evaluation.metrics import ONE_CLASS, LabelWarning, usable_splits
from h3gnn.evaluation.protocols import POOLED
from h3gnn.experiments import LARGEST_STACK
from h3gnn.experiments.spaces import OWN, ConfigurationStack, Space, scaled_features, with_objectives
from h3gnn.graphs.graph import Graph
from h3gnn.preprocessing import step_matrix
from h3gnn.settings import kept_for
from h3gnn.storage.runs import made_with
from h3gnn.storage.schema import (
    FieldError,
    Flag,
    Kind,
    Listed,
    Number,
    Plain,
    Record,
    Text,
    Whole,
    check,
    naming,
)

if TYPE_CHECKING:
    import optuna

    Trial = optuna.trial.FrozenTrial
    import optuna

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
    check(RESULTS, found, "results")
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
        check(TOLD, told)
        check(Listed(Whole(0), least=1), list(trial.intermediate_values), "the epochs of its scores")
        check(Listed(Number()), list(trial.intermediate_values.values()), "scores")
    if not is_finished and stack:
        _check_stack(stack)
    if "best" in told or stack:
        missing = next((name for name in space.proposed if name not in trial.params), None)
        if missing is not None:
            raise FieldError(f"params.{missing}", "is missing")


def _check_stack(stack: Sequence[Trial]) -> None:
    for one in stack:
        check(RESERVED, one.user_attrs)
    first, size = stack[0].user_attrs, stack[0].user_attrs["of"]
    places = [one.user_attrs["place"] for one in stack]
    if places != list(range(len(stack))) or len(stack) > size:
        raise FieldError("place", "is not the next one of its stack")
    if "results" in first and len(results_of(first["results"])) != size:
        raise FieldError("results", f"must be those of {size} trial(s)")


PATIENCE_SECONDS = 60
"""How long SQLite waits for another process that writes."""
FOREIGN = ("sqlalchemy", "alembic", "optuna", "sqlite3", "pymysql", "MySQLdb", "psycopg", "psycopg2", "json")
"""Whose errors, in the middle of a search, are the storage's."""
Results = list[dict[str, Any]]
"""Of each trial of a stack: its curve, its best score with epochs and smoothing, and if it fell behind."""


def connect(name: str, storage: str | None, seed: int) -> optuna.Study:
    """Create a study, or open the one of that name; two processes may do so at once on a new file.

    Args:
        name: of the study.
        storage: an Optuna address such as `sqlite:///studies.db`, a file ending in `.log` for Optuna's
            journal, or None to keep the study in memory.
        seed: kept with the study's sampler.

    Raises:
        InputError: in one sentence, for whatever is wrong with the storage.
    """
    try:
        import optuna
    except ImportError:
        raise InputError("tuning needs Optuna: pip install 'h3gnn[tune]'") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with storage_faults(storage, opening=True), _alone_in_folder(storage):
        study = optuna.create_study(
            study_name=name,
            storage=_place(storage),
            load_if_exists=True,
            direction="maximize",
            sampler=optuna.samplers.RandomSampler(seed=seed),  # never asked: see `propose`
            pruner=optuna.pruners.PercentilePruner(50.0, n_startup_trials=12, n_warmup_steps=1),
        )
        study.get_trials(deepcopy=False)  # so that damage is found now
    return study


def _place(storage: str | None) -> Any:
    import optuna
    from optuna.storages.journal import JournalFileBackend

    if storage is None:
        return None
    if storage.endswith(".log"):
        return optuna.storages.JournalStorage(JournalFileBackend(storage))
    if "://" not in storage:
        raise InputError(f"--storage {storage}: write sqlite:///{storage}, or a journal, FILE.log")
    if storage.startswith("sqlite"):
        waiting = {"connect_args": {"timeout": PATIENCE_SECONDS}}
        return optuna.storages.RDBStorage(storage, engine_kwargs=waiting)
    return storage


@contextlib.contextmanager
def storage_faults(storage: str | None, *, opening: bool = False) -> Iterator[None]:
    """Turn what a storage raises into one sentence; while opening, whatever is raised."""
    try:
        yield
    except (InputError, MemoryError):
        raise
    except Exception as error:
        if not opening and not {type(error).__module__.split(".")[0], _raised_in(error)} & set(FOREIGN):
            raise
        where = without_secrets(storage or "memory")
        done = "opened" if opening else "read or written"
        raise InputError(
            f"the studies in {where} cannot be {done} ({_reason(error)}): mend or move it, or give another "
            "--storage; what is in it goes on with the same command"
        ) from error


def _raised_in(error: BaseException) -> str:
    """Return the package whose code raised an error."""
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    return "" if at is None else str(at.tb_frame.f_globals.get("__name__", "")).split(".")[0]


def _reason(error: BaseException) -> str:
    """Return what the innermost error says, on one line."""
    inner: BaseException = error
    while inner.__cause__ is not None:
        inner = inner.__cause__
    said = str(getattr(inner, "orig", None) or inner) or type(inner).__name__
    return without_secrets(" ".join(said.split()))[:200]


@contextlib.contextmanager
def _alone_in_folder(storage: str | None) -> Iterator[None]:
    """Wait for other processes that open a study in the same folder: Optuna's tables are made once."""
    is_file = storage is not None and (storage.startswith("sqlite:///") or storage.endswith(".log"))
    folder = Path((storage or "").removeprefix("sqlite:///").split("?")[0]).parent if is_file else None
    handle = None
    with contextlib.suppress(ImportError, OSError):
        import fcntl

        if folder is not None:
            handle = os.open(folder, os.O_RDONLY)
            fcntl.flock(handle, fcntl.LOCK_EX)
    try:
        yield
    finally:
        if handle is not None:
            os.close(handle)


def propose(study: optuna.Study, space: Space, *, first: int, count: int, seed: int) -> list[dict[str, Any]]:
    """Return arguments for a stack: the first are free, the others vary what a stack's models may vary.

    Args:
        study: whose trials before number `first` are looked at.
        space: what to choose from; a search from the default begins with the default itself.
        first: the number of the stack's first trial.
        count: how many.
        seed: of the search.
    """
    import optuna

    drawn = int(np.random.SeedSequence([seed, first]).generate_state(1)[0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what is experimental in Optuna is Optuna's affair
        sampler = optuna.samplers.TPESampler(seed=drawn, constant_liar=True, n_startup_trials=24)
        copy = optuna.create_study(direction="maximize", sampler=sampler)
        known = [trial for trial in study.get_trials(deepcopy=False) if trial.number < first]
        copy.add_trials(trial for trial in known if trial.state != optuna.trial.TrialState.WAITING)
        if first == 0 and space.start is None:
            copy.enqueue_trial({name: values[0] for name, values in space.proposed.items()})
        batch = [_suggest(copy.ask(), space)]
        shape = {name: batch[0][name] for name in space.shared}
        copy.sampler = optuna.samplers.PartialFixedSampler(shape, sampler)
        return batch + [_suggest(copy.ask(), space) for _ in range(count - 1)]


def _suggest(trial: optuna.Trial, space: Space) -> dict[str, Any]:
    return {name: trial.suggest_categorical(name, list(v)) for name, v in space.proposed.items()}


class Stack:
    """Trials that are trained as one program: reserved in the study, and told to it together."""

    def __init__(self, study: optuna.Study, token: str, size: int) -> None:
        self.study, self.token, self.size = study, token, size

    @property
    def trials(self) -> list[optuna.trial.FrozenTrial]:
        """What the study holds of it, in the order of the stack."""
        own = [one for one in self.study.get_trials() if one.user_attrs.get("stack") == self.token]
        return sorted(own, key=lambda trial: int(trial.user_attrs["place"]))

    @classmethod
    def reserve(cls, study: optuna.Study, space: Space, count: int, seed: int) -> Stack:
        """Propose so many trials and write down that this process tries them."""
        stack = cls(study, uuid.uuid4().hex, count)
        stack._fill(space, first=len(study.get_trials(deepcopy=False)), seed=seed)
        return stack

    @classmethod
    def left_behind(cls, study: optuna.Study, space: Space, seed: int) -> Stack | None:
        """Take up a stack whose process on this machine is gone; None where there is none."""
        for trial in study.get_trials(deepcopy=False):
            told = trial.user_attrs
            if trial.state.is_finished() or "stack" not in told or not _is_gone(told.get("owner")):
                continue
            stack = cls(study, told["stack"], int(told["of"]))
            for number, one in enumerate(stack.trials):
                if not one.state.is_finished():
                    stack._live(number).set_user_attr("owner", _owner())
            stack._fill(space, first=stack.trials[0].number, seed=seed)
            return stack
        return None

    def _fill(self, space: Space, *, first: int, seed: int) -> None:
        """Reserve the trials that are not there yet."""
        import optuna

        there = len(self.trials)
        if there == self.size:
            return
        kinds: dict[str, Any] = {
            n: optuna.distributions.CategoricalDistribution(list(v)) for n, v in space.proposed.items()
        }
        every = propose(self.study, space, first=first, count=self.size, seed=seed)
        for place in range(there, self.size):
            about = {"stack": self.token, "place": place, "of": self.size, "owner": _owner()}
            self.study.add_trial(
                optuna.create_trial(
                    state=optuna.trial.TrialState.RUNNING,
                    params=every[place],
                    distributions=kinds,
                    user_attrs=about,
                )
            )

    def fell_behind(self, curve: dict[int, float]) -> bool:
        """Whether a trial with these scores so far is worse than most of the study's at the same epoch."""
        import optuna

        so_far = optuna.create_trial(state=optuna.trial.TrialState.RUNNING, intermediate_values=dict(curve))
        return bool(self.study.pruner.prune(self.study, so_far))

    @property
    def results(self) -> Results | None:
        """The scores of a stack that was trained, but whose trials have not all been told."""
        kept = self.trials[0].user_attrs.get("results")
        if kept is None:
            return None
        with naming(f"the study {self.study.study_name}"):
            return results_of(kept)

    def keep(self, results: Results) -> None:
        """Write down all scores at once: from now on the stack need not be trained again."""
        self._live(0).set_user_attr("results", json.dumps(results))

    def tell(self) -> None:
        """Tell the study how each trial ended; the first, which holds all scores, comes last."""
        import optuna

        results = self.results or []
        for place, trial in reversed(list(enumerate(self.trials))):
            if trial.state.is_finished():
                continue
            live, result = self._live(place), results[place]
            for epoch, score in ((int(epoch), score) for epoch, score in result["curve"]):
                if epoch not in trial.intermediate_values:
                    live.report(score, epoch)
            for name in ("epochs", "smoothing", "best", "seed"):
                live.set_user_attr(name, result[name])
            if result["behind"]:
                self.study.tell(trial.number, state=optuna.trial.TrialState.PRUNED, skip_if_finished=True)
            else:
                self.study.tell(trial.number, result["best"], skip_if_finished=True)

    def fail(self, why: str) -> None:
        """Tell the study that nothing came of the stack."""
        import optuna

        for place, trial in enumerate(self.trials):
            self._live(place).set_user_attr("failed", why)
            self.study.tell(trial.number, state=optuna.trial.TrialState.FAIL, skip_if_finished=True)

    def _live(self, place: int) -> optuna.Trial:
        """Return a trial as something that can be written to."""
        import optuna

        return optuna.trial.Trial(self.study, self.trials[place]._trial_id)


def finished(study: optuna.Study) -> int:
    """Return how many trials of a study have ended."""
    return sum(trial.state.is_finished() for trial in study.get_trials(deepcopy=False))


def scores_of(study: optuna.Study) -> Sequence[float]:
    """Return the best score of each trial that has one."""
    told = [trial.user_attrs.get("best") for trial in study.get_trials(deepcopy=False)]
    return [one for one in told if isinstance(one, int | float)]


def _owner() -> list[Any]:
    return [socket.gethostname(), os.getpid()]


def _is_gone(owner: Any) -> bool:
    """Whether the process that reserved a trial is known to be gone; of other machines that is not known."""
    if not isinstance(owner, list) or len(owner) != 2 or owner[0] != socket.gethostname():
        return False
    if owner[1] == os.getpid():  # an earlier search of this very process
        return True
    try:
        os.kill(int(owner[1]), 0)
    except (ProcessLookupError, TypeError, ValueError, OverflowError):
        return True
    except OSError:
        return False
    return False


Objective = Callable[[Tensor], Sequence[float]]
"""From embeddings `[configurations, nodes, D]` to a score for each, larger is better."""

FIXED = {"schedule": "constant"}
"""With a constant rate, a run of fewer epochs is the beginning of a longer one."""


@dataclass(frozen=True)
class Budget:
    """How much a search may do.

    Attributes:
        trials: configurations in all.
        at_once: models in a stack.
        joined: models of a configuration, whose embeddings are scored side by side.
        rungs: the epochs at which a stack is scored; the last is the end.
        seconds: ask for no more after so long, or None.
    """

    trials: int = 100
    at_once: int = 16
    joined: int = 1
    rungs: tuple[int, ...] = (10, 20, 40, 80, 160, 300)
    seconds: float | None = None


@dataclass
class Tried:
    """A configuration with the scores that it had along the way.

    Attributes:
        params: arguments of `H3GNN` that were proposed for it.
        seed: of its first model.
        looks: the score after so many epochs with such a smoothing.
    """

    params: dict[str, Any]
    seed: int
    looks: dict[tuple[int, float], float] = field(default_factory=dict)

    @property
    def score(self) -> float:
        """The best score along the way."""
        return max(self.looks.values(), default=float("-inf"))

    @property
    def best(self) -> tuple[int, float]:
        """The epochs and the smoothing with which the best score came first."""
        return next((look for look, score in self.looks.items() if score == self.score), (0, 0.0))

    @property
    def curve(self) -> dict[int, float]:
        """The best score at each epoch."""
        return {epoch: max(s for (e, _), s in self.looks.items() if e == epoch) for epoch, _ in self.looks}

    def as_result(self) -> dict[str, Any]:
        """Return what a study keeps of it, as plain values."""
        epochs, smoothing = self.best
        found = {"epochs": epochs, "smoothing": smoothing, "best": self.score, "seed": self.seed}
        return {**found, "curve": [list(one) for one in self.curve.items()]}

    @classmethod
    def mean(cls, repeats: Sequence[Tried]) -> Tried:
        """Return one configuration with the mean scores of its repeats."""
        looks = {look: sum(one.looks[look] for one in repeats) / len(repeats) for look in repeats[0].looks}
        return cls(repeats[0].params, repeats[0].seed, looks)


class Searcher:
    """Trains stacks of configurations on one graph and scores them.

    Args:
        graph: what to learn from; its labels are not looked at here.
        base: arguments of `H3GNN` that a search does not vary.
        objective: the score of a configuration.
        budget: sizes and epochs.
        device: where to train.
        smoothings: strengths to try at each look.
        looked: called with the epoch after each look, for a progress bar.
    """

    def __init__(
        self,
        graph: Graph,
        base: Mapping[str, Any],
        objective: Objective,
        budget: Budget,
        device: torch.device,
        smoothings: Sequence[float] = (0.0,),
        looked: Callable[[int], None] = lambda epoch: None,
    ) -> None:
        self.graph, self.base = graph, {**base, **FIXED}
        self.objective, self.budget, self.device, self.looked = objective, budget, device, looked
        walk = step_matrix(graph, "walks", device)
        self.smoothers = [Smoother(walk, strength) for strength in smoothings]
        self._scaled: dict[str, FeatureMatrix] = {}

    def search(
        self,
        study: optuna.Study,
        space: Space,
        *,
        seed: int,
        told: Callable[[optuna.Study], None] | None = None,
    ) -> None:
        """Run trials of a study until the budget is spent; a study that has trials already goes on.

        Args:
            study: of Optuna, which keeps the trials; several processes may share it.
            space: what to choose from.
            seed: of the models' starts.
            told: called after each stack, for a progress bar.
        """
        began, taken = time.monotonic(), True
        while (left := self.budget.trials - finished(study)) > 0:
            if self.budget.seconds is not None and time.monotonic() - began > self.budget.seconds:
                return
            stack = Stack.left_behind(study, space, seed) if taken else None
            taken = stack is not None  # of this run's own nothing is left behind
            if stack is None:
                at_once = (
                    1 if self._is_committee(space) else max(1, self.budget.at_once // self.budget.joined)
                )
                stack = Stack.reserve(study, space, min(left, at_once), seed)
            self._run_stack(stack, seed)
            if told is not None:
                told(study)

    def score(
        self,
        tried: Sequence[Tried],
        joined: int,
        rungs: Sequence[int],
        fell_behind: Callable[[int, int], bool] | None = None,
    ) -> None:
        """Train configurations of one shape, each with `joined` models, and write down their scores.

        Args:
            tried: what to train; their curves are filled.
            joined: models of each configuration.
            rungs: the epochs at which to score.
            fell_behind: from a position in `tried` and an epoch to whether to give it up.
        """
        shape = with_objectives(
            self.base | {name: value for name, value in tried[0].params.items() if name not in OWN}
        )
        own = [{name: one.params[name] for name in OWN if name in one.params} for one in tried]
        stack = ConfigurationStack(
            self.graph,
            shape,
            [one for one in own for _ in range(joined)],
            [one.seed + model for one in tried for model in range(joined)],
            self.device,
            self._features(shape),
        )
        going_on = list(range(len(tried)))
        for rung in rungs:
            stack.train(rung)
            self._look([tried[place] for place in going_on], rung, _side_by_side(stack, joined))
            self.looked(rung)
            if fell_behind is not None:
                going_on = [place for place in going_on if not fell_behind(place, rung)]
            if not going_on:
                break
            stack.keep([joined * place + model for place in going_on for model in range(joined)])

    def _is_committee(self, space: Space) -> bool:
        """Whether a trial's models have different objectives: they are then a stack of their own."""
        return not isinstance(self.base["objective"], str) or "objective" in space.choices

    def _look(self, tried: Sequence[Tried], epoch: int, embeddings: Tensor) -> None:
        """Score the embeddings `[configurations, nodes, D]` with every smoothing."""
        for smoother in self.smoothers:
            smoothed = torch.stack([smoother(one) for one in embeddings])
            for one, score in zip(tried, self.objective(smoothed), strict=True):
                one.looks[epoch, smoother.strength] = score

    def _run_stack(self, stack: Stack, seed: int) -> None:
        """Train the trials of a stack, if that has not been done, and tell the study."""
        if stack.results is None:
            joined, rungs = self.budget.joined, self.budget.rungs
            tried = [Tried(dict(trial.params), seed + 1000 * trial.number) for trial in stack.trials]
            behind: set[int] = set()

            def fell_behind(place: int, rung: int) -> bool:
                if rung != rungs[-1] and stack.fell_behind(tried[place].curve):
                    behind.add(place)
                return place in behind

            try:
                self.score(tried, joined, rungs, fell_behind)
            except torch.OutOfMemoryError:
                stack.fail("out of memory")
                return
            finally:
                _forget(self.device)
            stack.keep([one.as_result() | {"behind": place in behind} for place, one in enumerate(tried)])
        stack.tell()

    def _features(self, params: Mapping[str, Any]) -> FeatureMatrix:
        scaling = params["scale_features"]
        if scaling not in self._scaled:
            self._scaled[scaling] = scaled_features(self.graph, params, self.device)
        return self._scaled[scaling]


def best_trials(study: optuna.Study, count: int, of_one_shape: int = 2) -> list[Tried]:
    """Return the best trials, not more than a few of the same shape, so that finalists differ."""
    finished_ones = (trial for trial in study.get_trials(deepcopy=False) if trial.state.is_finished())
    scored = [trial for trial in finished_ones if "best" in trial.user_attrs]
    chosen: list[Tried] = []
    shapes: list[dict[str, Any]] = []
    for trial in sorted(scored, key=lambda trial: -trial.user_attrs["best"]):
        shape = {name: value for name, value in trial.params.items() if name not in OWN}
        if shapes.count(shape) < of_one_shape:
            shapes.append(shape)
            found = {(epoch, 0.0): score for epoch, score in trial.intermediate_values.items()}
            chosen.append(Tried(dict(trial.params), trial.user_attrs["seed"], found))
        if len(chosen) == count:
            break
    return chosen


def _side_by_side(stack: ConfigurationStack, joined: int) -> Tensor:
    """Return each configuration's embedding, `[configurations, nodes, joined · D]`."""
    single = stack.embeddings()
    _, nodes, width = single.shape
    return single.view(-1, joined, nodes, width).transpose(1, 2).reshape(-1, nodes, joined * width)


def _forget(device: torch.device) -> None:
    """Give memory back between stacks: their shapes differ, and other processes may share the device."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


OBJECTIVES = ("validation", "clustering", "label-free")
PROBED = "validation, linear probe"
FINAL_SEED = 77_000_000
"""Finalists start from seeds that no trial had."""


@dataclass(frozen=True)
class Tuned:
    """What a search found.

    Attributes:
        params: arguments of `H3GNN`.
        made: how they were found, for the preset file.
        record: what was asked for, every trial and finalist, for whoever wants to trace the choice.
    """

    params: dict[str, Any]
    made: dict[str, Any]
    record: dict[str, Any]

    def preset(self, study_file: str | None = None) -> dict[str, Any]:
        """Return the content of a preset file; it names the file that the record is written to, if any."""
        return {"params": self.params, "tuned": {**self.made, "study_file": study_file}}


def open_study(graph: Graph, name: str, storage: str | None, objective: str, seed: int) -> optuna.Study:
    """Create a study, or go on with one of that name.

    Args:
        graph: what the study is about; a study of another graph is refused.
        name: of the study.
        storage: an Optuna address such as `sqlite:///studies.db`, a file ending in `.log` for Optuna's
            journal, or None to keep the study in memory.
        objective: what its trials are scored by.
        seed: of the sampler.
    """
    study = connect(name, storage, seed)
    about = {"graph": graph.provenance.sha256, "objective": objective}
    with storage_faults(storage):
        for key, value in about.items():
            if study.user_attrs.setdefault(key, value) != value:
                raise InputError(f"the study {name} is about another {key}; choose another name with --study")
            study.set_user_attr(key, value)
    return study


def tune(
    graph: Graph,
    study: optuna.Study,
    space: Space,
    budget: Budget,
    *,
    models: int = 1,
    finalists: int = 4,
    repeats: int = 1,
    probed: bool = False,
    objective: str = "validation",
    splits: int | None = None,
    clusters: int | None = None,
    base: dict[str, Any] | None = None,
    device: torch.device,
    seed: int = 0,
    told: Callable[[optuna.Study], None] | None = None,
    looked: Callable[[int], None] = lambda epoch: None,
) -> Tuned:
    """Search, train the best few with more models each, and return the best of those.

    Args:
        graph: what to learn from.
        study: from `open_study`.
        space: what to choose from.
        budget: of the search.
        models: `n_models` of the result, and of each finalist.
        finalists: how many of the best trials are trained so.
        repeats: how often, from other seeds; their mean counts, which rewards luck less.
        probed: under "validation", score finalists by the linear probe instead of by ridge regression.
        objective: "validation" needs labels and splits and looks at training and validation nodes only;
            "clustering" is the accuracy of k-means on validation nodes; "label-free" looks at no label.
        splits: score trials on the first few splits only; finalists are scored on all.
        clusters: for k-means, how many; the number of classes, or 8, by default.
        base: arguments of `H3GNN` that the space does not name; its defaults otherwise.
        device: where to train.
        seed: of the models' starts.
        told: called after each stack of trials.
        looked: called with the epoch after each look at a stack.
    """
    code = made_with()  # before the search: files may change while it runs
    params = {**start_of(space), **(base or {})}
    smoothings = tuple(space.choices.get("smoothing", (params["smoothing"],)))
    if "auto" in smoothings:
        raise InputError("a search tries strengths of smoothing: give numbers, not auto")
    scored_by = _objective(graph, objective, splits, clusters, device)
    searcher = Searcher(graph, params, scored_by, budget, device, smoothings, looked)
    with storage_faults(study.study_name):
        check_trials(study, space)
        searcher.search(study, space, seed=seed, told=told)
        chosen = best_trials(study, finalists)
    if not chosen:
        raise InputError("no trial of the study ended with a score: allow more trials or more time")
    final_name = PROBED if probed and objective == "validation" else objective
    searcher.objective = _objective(graph, final_name, None, clusters, device)
    final = [_run_finalist(searcher, one, models, repeats, seed) for one in chosen]
    best = max(final, key=lambda one: one.score)
    found = _preset_params(best, params, models)
    made = _made(graph, study, objective, seed) | {"score": best.score, "scored_by": final_name}
    made |= {"repeats": repeats, "trainings": made["trials"] + repeats * len(final), **code}
    asked = _asked(
        space,
        budget,
        base=base or {},
        objective=objective,
        splits=splits,
        clusters=clusters,
        finalists=finalists,
        models=models,
        repeats=repeats,
        scored_by=final_name,
        seed=seed,
        final_seeds=_final_seeds(seed, repeats),
    )
    return Tuned(found, made, {"search": asked, **_record(study, final)})


def start_of(space: Space) -> dict[str, Any]:
    """Return the arguments of `H3GNN` that a search in this space starts from."""
    model = H3GNN() if space.start is None else H3GNN.from_preset(space.start)
    params: dict[str, Any] = model.get_settings()
    return params


def _run_finalist(searcher: Searcher, trial: Tried, models: int, repeats: int, seed: int) -> Tried:
    again = [Tried(trial.params, one) for one in _final_seeds(seed, repeats)]
    for one in again:
        searcher.score([one], models, [rung for rung in searcher.budget.rungs if rung <= max(trial.curve)])
    return Tried.mean(again)


def _final_seeds(seed: int, repeats: int) -> list[int]:
    """Return the seed of the first model of each training of a finalist."""
    return [FINAL_SEED + seed + 1000 * repeat for repeat in range(repeats)]


def _objective(
    graph: Graph, name: str, splits: int | None, clusters: int | None, device: torch.device
) -> Objective:
    if name == "label-free":
        return ClusterAgreement(clusters or graph.num_classes or 8)
    if name not in (*OBJECTIVES, PROBED):
        raise InputError(f"there is no objective {name!r}; the objectives are {', '.join(OBJECTIVES)}")
    if graph.labels is None or graph.train_mask is None or graph.val_mask is None:
        raise InputError("the graph has no labels to validate on; use --objective label-free")
    if len(torch.unique(graph.labels[graph.labels >= 0])) < 2:
        warnings.warn(ONE_CLASS, LabelWarning, stacklevel=1)  # one place: it is said once
    train, val = graph.train_mask[:, :splits], graph.val_mask[:, :splits]
    usable = usable_splits(graph.labels, *((val,) if name == "clustering" else (train, val)))
    if not usable.any():
        raise InputError(
            "no split has labelled nodes to train on and to validate on, so that nothing can be scored: use "
            "--objective label-free"
        )
    if not usable.all():
        message = (
            f"{int((~usable).sum())} of {len(usable)} split(s) lack labelled nodes: scored on the others"
        )
        warnings.warn(message, LabelWarning, stacklevel=3)
    train, val = train[:, usable], val[:, usable]
    if name == "clustering":
        return ClusterAccuracy(graph.labels, val, clusters or graph.num_classes)
    if name == PROBED:
        return ProbeAccuracy(graph.labels, train, val)
    return ValidationAccuracy(RidgeValidation(graph.labels, train, val, device))


def _preset_params(best: Tried, base: dict[str, Any], models: int) -> dict[str, Any]:
    """Return all arguments that shape a result; those of one machine or one run are left out."""
    epochs, smoothing = best.best
    chosen = {"epochs": epochs, "smoothing": smoothing, "n_models": models}
    return kept_for("preset", with_objectives({**base, **best.params, **FIXED, **chosen}))


def _made(graph: Graph, study: optuna.Study, objective: str, seed: int) -> dict[str, Any]:
    return {
        "by": "h3gnn tune",
        "study": study.study_name,
        "graph": graph.provenance.source,
        "sha256": graph.provenance.sha256,
        "protocol": "no labels" if objective == "label-free" else POOLED.name,
        "objective": objective,
        "trials": finished(study),
        "seed": seed,
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
    }


def _asked(space: Space, budget: Budget, **options: Any) -> dict[str, Any]:
    """Return what a search was asked for: all values that it chose from, its budget, and the rest by name."""
    choices = {name: list(values) for name, values in space.choices.items()}
    rungs = list(budget.rungs)
    return {"space": choices, "start": space.start, **asdict(budget), "rungs": rungs, **options}


def _record(study: optuna.Study, final: list[Tried]) -> dict[str, Any]:
    trials = [
        {
            "number": trial.number,
            "state": trial.state.name.lower(),
            "params": trial.params,
            "seed": trial.user_attrs.get("seed"),
            "smoothing": trial.user_attrs.get("smoothing"),
            "curve": {str(epoch): round(score, 5) for epoch, score in trial.intermediate_values.items()},
        }
        for trial in study.get_trials(deepcopy=False)
        if trial.state.is_finished()
    ]
    finalists = [
        {
            "params": one.params,
            "looks": [[epoch, smoothing, round(score, 5)] for (epoch, smoothing), score in one.looks.items()],
        }
        for one in final
    ]
    return {"trials": trials, "finalists": finalists}
