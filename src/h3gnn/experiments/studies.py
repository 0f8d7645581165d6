"""A study in Optuna's storage: opened safely, its trials reserved a stack at a time, taken up after a kill.

What is proposed depends on the trials before it and on the seed alone, not on how often the search was
interrupted: proposals are drawn in a copy of the study in memory, from a seed of their own for each stack.
They are then written down with who tries them. A process that dies leaves them so, and the next one on the
same machine trains that very stack again. Scores are written down for a whole stack at once, before the first
of its trials is told. So an interrupted search that is given the same command again ends where an
uninterrupted one does.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import uuid
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from h3gnn.errors import InputError, without_secrets
from h3gnn.experiments.spaces import Space
from h3gnn.experiments.trials import results_of
from h3gnn.schema import naming

if TYPE_CHECKING:
    import optuna

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
