"""Optuna studies: opening and sharing a storage, resuming after an interruption, and seeding the sampler."""

from __future__ import annotations

import contextlib
import os
import socket
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from h3gnn.errors import InputError, without_secrets
from h3gnn.experiments.spaces import Space
from h3gnn.graphs.graph import Graph

if TYPE_CHECKING:
    import optuna

TIMEOUT = 60
"""Seconds that SQLite waits for another process that writes."""
HEARTBEAT = 60
"""Seconds between the heartbeats of a trial in a database; after twice this it is retried elsewhere."""
CLAIM_SECONDS = 5.0
"""Seconds that a process may need from the start of a trial to its owner, which is written next."""
STORAGE_PACKAGES = {
    *("sqlalchemy", "alembic", "optuna", "sqlite3", "pymysql", "MySQLdb", "psycopg", "psycopg2", "json")
}
"""Packages whose errors during a search come from the storage."""


def open_study(graph: Graph, name: str, storage: str | None, objective: str) -> optuna.Study:
    """Create a study, or continue the one of that name; two processes may create one file at once.

    Args:
        graph, name, objective: a study of another graph or objective is rejected.
        storage: an Optuna address such as `sqlite:///studies.db`, a file ending in `.log` for Optuna's
            journal, or None to keep the study in memory.
    """
    try:
        import optuna
    except ImportError:
        raise InputError("tuning needs Optuna: pip install 'h3gnn[tune]'", code="missing-library") from None
    optuna.logging.set_verbosity(optuna.logging.CRITICAL)
    with storage_errors(storage, opening=True), _folder_lock(storage), warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        study = optuna.create_study(
            study_name=name,
            storage=_open_storage(storage),
            load_if_exists=True,
            direction="maximize",
            pruner=optuna.pruners.PercentilePruner(50.0, n_startup_trials=12, n_warmup_steps=1),
        )
        study.get_trials(deepcopy=False)  # detects a damaged storage now
        for key, value in {"graph": graph.provenance.sha256, "objective": objective}.items():
            if study.user_attrs.get(key, value) != value:
                message = f"the study {name} belongs to another {key}; choose another name with --study"
                raise InputError(message, code="study-mismatch")
            study.set_user_attr(key, value)
    return study


def _open_storage(storage: str | None) -> Any:
    from optuna.storages import JournalStorage, RDBStorage, RetryHeartbeatStaleTrialCallback
    from optuna.storages.journal import JournalFileBackend

    if storage is None:
        return None
    if storage.endswith(".log"):
        return JournalStorage(JournalFileBackend(storage))
    if "://" not in storage:
        message = f"--storage {storage}: write sqlite:///{storage}, or FILE.log for a journal"
        raise InputError(message, code="storage")
    return RDBStorage(
        storage,
        engine_kwargs={"connect_args": {"timeout": TIMEOUT}} if storage.startswith("sqlite") else None,
        heartbeat_interval=HEARTBEAT,
        heartbeat_stale_trial_callback=RetryHeartbeatStaleTrialCallback(),
    )


@contextlib.contextmanager
def storage_errors(storage: str | None, *, opening: bool = False) -> Iterator[None]:
    """Turn the errors of a storage into one sentence; while opening, all errors."""
    try:
        yield
    except (InputError, MemoryError):
        raise
    except Exception as error:
        if not opening and not {type(error).__module__.split(".")[0], _raised_in(error)} & STORAGE_PACKAGES:
            raise
        inner: BaseException = error
        while inner.__cause__ is not None:
            inner = inner.__cause__
        reason = " ".join((str(getattr(inner, "orig", None) or inner) or type(inner).__name__).split())
        action = "opened" if opening else "read or written"
        raise InputError(
            f"the study storage {without_secrets(storage or 'memory')} cannot be {action} "
            f"({without_secrets(reason)[:200]}); repair or move it, or give another --storage. The same "
            "command continues a study",
            code="storage",
        ) from error


def _raised_in(error: BaseException) -> str:
    """Return the package whose code raised an error."""
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    return "" if at is None else str(at.tb_frame.f_globals.get("__name__", "")).split(".")[0]


@contextlib.contextmanager
def _folder_lock(storage: str | None) -> Iterator[None]:
    """Wait for other processes that open a study in the same folder: Optuna creates its tables once."""
    with contextlib.ExitStack() as stack:
        if storage is not None and (storage.startswith("sqlite:///") or storage.endswith(".log")):
            with contextlib.suppress(ImportError, OSError):
                import fcntl

                folder = Path(storage.removeprefix("sqlite:///").split("?")[0]).parent
                handle = os.open(folder, os.O_RDONLY)
                stack.callback(os.close, handle)
                fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def position_of(study: optuna.Study, before: int | None = None) -> int:
    """Return the number of trials, up to a given one, that did not fail."""
    return len(kept_trials(study, before))


def kept_trials(study: optuna.Study, before: int | None = None) -> list[optuna.trial.FrozenTrial]:
    """Return the trials, up to a given one, that did not fail: an interrupted search repeats the others."""
    return [one for one in study.get_trials(deepcopy=False)[:before] if one.state.name != "FAIL"]


def seed_sampler(study: optuna.Study, seed: int) -> None:
    """Seed the sampler of the next trial by its position, so that a resumed search proposes the same."""
    import optuna

    drawn = int(np.random.SeedSequence([seed, position_of(study)]).generate_state(1)[0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        study.sampler = optuna.samplers.TPESampler(seed=drawn, constant_liar=True, n_startup_trials=24)


def fail_orphans(study: optuna.Study) -> None:
    """Mark the running trials of processes on this machine that no longer exist as failed.

    A process that is killed right after it has begun a trial leaves one without an owner.
    """
    from optuna.trial import TrialState

    waited = time.monotonic()
    for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
        while (owner := study.trials[trial.number].user_attrs.get("owner")) is None:
            if time.monotonic() - waited > CLAIM_SECONDS:
                break
            time.sleep(0.1)
        match owner:
            case [host, pid] if host != socket.gethostname() or _is_running(pid):
                continue
            case None | [_, _]:
                study.tell(trial.number, state=TrialState.FAIL, skip_if_finished=True)


def _is_running(pid: Any) -> bool:
    """Whether another process has this id; an earlier search of this process has ended."""
    try:
        os.kill(int(pid), 0)
    except (ProcessLookupError, TypeError, ValueError, OverflowError):
        return False
    except OSError:
        return True
    return bool(pid != os.getpid())


def check_study(study: optuna.Study, space: Space) -> None:
    """Reject a study whose trials belong to another space."""
    from optuna.distributions import CategoricalDistribution
    from optuna.study import StudyDirection

    expected = {name: CategoricalDistribution(list(values)) for name, values in space.proposed.items()}
    trials = [one for one in study.get_trials(deepcopy=False) if one.intermediate_values or one.values]
    other = next((one for one in trials if one.distributions != expected), None)
    if other is not None or study.directions != [StudyDirection.MAXIMIZE]:
        changed = [] if other is None else [n for n in expected if other.distributions.get(n) != expected[n]]
        raise InputError(
            f"the study {study.study_name} has another search space"
            + (f" ({', '.join(changed)} of trial {other.number})" if other and changed else "")
            + ": give the same --space and --choices as before, or another name with --study",
            code="study-space",
        )


def ended_trials(study: optuna.Study) -> list[optuna.trial.FrozenTrial]:
    """Return the trials that were completed or pruned."""
    return [one for one in study.get_trials(deepcopy=False) if has_ended(one)]


def has_ended(trial: optuna.trial.FrozenTrial) -> bool:
    """Whether a trial was completed or pruned."""
    return trial.state.name in ("COMPLETE", "PRUNED")


def finished(study: optuna.Study) -> int:
    """Return the number of trials that were completed or pruned."""
    return len(ended_trials(study))
