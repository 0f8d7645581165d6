from __future__ import annotations

import errno
import itertools
import json
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from h3gnn import H3GNN, CheckpointError, Checkpoints, CheckpointWarning, Graph, InputError
from h3gnn.errors import TrainingStopped
from h3gnn.storage.atomic import StopRequest, delayed_signals, versions
from h3gnn.storage.checkpoint_file import checkpoints_in, epoch_of, newest_in, one_process_only
from h3gnn.storage.tensors import read_tensor_file, write_tensor_file
from h3gnn.training.checkpoints import CheckpointWriter
from h3gnn.training.history import Recorder
from h3gnn.training.models import Training
from h3gnn.training.step import MaskStrategy
from tests.rejects import rejects

QUICK: dict[str, Any] = {"epochs": 8, "channels": 4, "heads": 2, "mask_warmup": 2, "device": "cpu"}


class KilledError(Exception):
    """Simulates the end of a process; tests/training/test_killed.py kills real ones."""


def fit(graph: Graph, checkpoints: Checkpoints | None = None, **settings: Any) -> H3GNN:
    return H3GNN.from_preset("single", **{**QUICK, **settings}).fit(graph, checkpoints=checkpoints)


@pytest.fixture(autouse=True)
def _ctrl_c_works() -> Iterator[None]:
    """Take SIGINT as a person's terminal gives it: a background job would have it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def fit_killed(epoch: int, graph: Graph, checkpoints: Checkpoints, **settings: Any) -> None:
    """Fit until a simulated kill after an epoch, and after its checkpoint if one is due."""
    original = CheckpointWriter.after_epoch

    def after_epoch(self: CheckpointWriter, recorder: Recorder, request: StopRequest) -> None:
        original(self, recorder, request)
        if len(recorder) == epoch:
            raise KilledError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CheckpointWriter, "after_epoch", after_epoch)
        with pytest.raises(KilledError):
            fit(graph, checkpoints, **settings)


def assert_same_bits(model: H3GNN, wanted: H3GNN) -> None:
    assert model.embedding_.tobytes() == wanted.embedding_.tobytes()
    assert model.history_.names == wanted.history_.names
    for name in wanted.history_.names:
        assert model.history_[name].tobytes() == wanted.history_[name].tobytes(), name
    for (name, mine), theirs in zip(
        model.encoder_.state_dict().items(), wanted.encoder_.state_dict().values(), strict=True
    ):
        assert torch.equal(mine, theirs), name


@contextmanager
def before_each_epoch(act: Callable[[int], object]) -> Iterator[None]:
    """Do something as each epoch begins, while the block runs."""
    unharmed = Training.mask_of

    def watched(self: Training, models: int) -> Callable[[int], MaskStrategy]:
        strategy_of = unharmed(self, models)

        def mask_of(epoch: int) -> MaskStrategy:
            act(epoch)
            return strategy_of(epoch)

        return mask_of

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Training, "mask_of", watched)
        yield


def epochs_in(folder: Path) -> list[int]:
    return sorted(epoch_of(path) for path in checkpoints_in(folder))


@pytest.mark.parametrize(
    "setting",
    [
        {},
        {"n_models": 2, "batch_norm": True, "token_dropout": 0.3, "hops": 3},
        {"n_models": 2, "precision": "float32", "feature_storage": "csr"},
        {"n_models": 2, "precision": "bfloat16", "feature_storage": "dense"},
        {"teacher_mode": "train", "batch_norm": True, "attention_dropout": 0.5, "token_dropout": 0.2},
        {"objective": "features", "mask": "random", "weight_decay": 0.01},
        {"mask": "difficulty", "schedule": "constant", "fusion": "mlp", "normalize": True},
        {"batch_size": 32, "edge_weights": "fixed", "n_models": 2, "batch_norm": True, "token_dropout": 0.3},
        {
            "batch_size": 32,
            "edge_weights": "computed",
            "objective": "features",
            "mask": "random",
            "precision": "float32",
        },
    ],
    ids=str,
)
def test_a_resumed_run_equals_the_uninterrupted_one_bit_for_bit(
    small_mixed: Graph, tmp_path: Path, setting: dict[str, Any]
) -> None:
    options = {**QUICK, **setting}
    wanted = fit(small_mixed, **options)
    for moment in (1, 3, 6, 7, 8):
        fit_killed(moment, small_mixed, Checkpoints(tmp_path / "run", every=3), **options)
    assert epochs_in(tmp_path / "run") == [6, 8]
    again = fit(small_mixed, Checkpoints(tmp_path / "run", every=3), **options)
    assert_same_bits(again, wanted)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("moment", range(1, 8))
def test_it_does_not_matter_where_it_was_killed(path_graph: Graph, tmp_path: Path, moment: int) -> None:
    checkpoints = Checkpoints(tmp_path, every=1, keep=1)
    fit_killed(moment, path_graph, checkpoints, n_models=3)
    assert epochs_in(tmp_path) == [moment]
    steps: list[int] = []
    with before_each_epoch(steps.append):
        model = fit(path_graph, checkpoints, n_models=3)
    assert_same_bits(model, fit(path_graph, n_models=3))
    assert steps == list(range(moment, 8))  # nothing was trained twice


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Let free memory allow so many models at once."""
    return lambda count: monkeypatch.setattr("h3gnn.training.models._count_fitting", lambda *_: count)


def test_models_in_groups_go_on_in_the_same_groups_whatever_memory_is_free(
    small_mixed: Graph, tmp_path: Path, at_once: Callable[[int], None]
) -> None:
    options = {**QUICK, "n_models": 5, "token_dropout": 0.2}
    at_once(2)
    wanted = fit(small_mixed, **options)
    folder = tmp_path / "run"
    # Where it dies, how much memory there is then, and the newest checkpoint that is left.
    for moment, free, left in [
        (5, 2, (3, "models-0-1")),
        (7, 5, (6, "models-0-1")),
        (1, 1, (8, "models-0-1")),
        (4, 3, (3, "models-2-3")),
        (2, 4, (8, "models-2-3")),
        (3, 5, (3, "models-4-4")),
    ]:
        at_once(free)
        fit_killed(moment, small_mixed, Checkpoints(folder, every=3), **options)
        assert newest_in(folder) == (left[0], folder / left[1])
    again = fit(small_mixed, Checkpoints(folder, every=3), **options)
    assert_same_bits(again, wanted)
    assert again.history_.engine == wanted.history_.engine
    assert again.history_.engine["models_at_once"] == 2
    assert not folder.exists()


@pytest.mark.parametrize(
    ("models", "words"), [(2, "of more than 2 models"), (6, "n_models is 5 there and 6 here")]
)
def test_groups_of_another_run_are_rejected(
    path_graph: Graph, tmp_path: Path, at_once: Callable[[int], None], models: int, words: str
) -> None:
    at_once(2)
    fit_killed(5, path_graph, Checkpoints(tmp_path, every=1), n_models=5)
    before = contents(tmp_path / "models-0-1")
    with pytest.raises(InputError, match=words):
        fit(path_graph, Checkpoints(tmp_path, every=1), n_models=models)
    assert contents(tmp_path / "models-0-1") == before
    assert [path.name for path in tmp_path.iterdir()] == ["models-0-1"]


def test_another_precision_is_rejected(
    path_graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("h3gnn.training.resources._cpu_bfloat16", lambda: False)
    interrupted_run(path_graph, tmp_path)
    monkeypatch.setattr("h3gnn.training.resources._cpu_bfloat16", lambda: True)
    with pytest.raises(InputError, match="precision is 'float32' there and 'bfloat16' here"):
        fit(path_graph, Checkpoints(tmp_path))
    assert len(fit(path_graph, Checkpoints(tmp_path), precision="float32").history_) == 8


def test_training_draws_from_no_generator_that_a_checkpoint_does_not_hold(path_graph: Graph) -> None:
    torch_state, numpy_state = torch.get_rng_state(), numpy_numbers()
    fit(path_graph, token_dropout=0.3, teacher_mode="train")
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert np.array_equal(numpy_numbers(), numpy_state)


def numpy_numbers() -> Any:
    return np.random.get_state(legacy=False)["state"]["key"]


def test_the_last_k_are_kept_and_a_finished_fit_leaves_none(path_graph: Graph, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    fit_killed(7, path_graph, Checkpoints(tmp_path, every=2, keep=3))
    assert epochs_in(tmp_path) == [2, 4, 6]
    fit(path_graph, Checkpoints(tmp_path, keep=2, keep_finished=True))
    assert epochs_in(tmp_path) == [6, 8]
    fit(path_graph, Checkpoints(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_temporary_files_of_a_killed_run_are_removed(path_graph: Graph, tmp_path: Path) -> None:
    (tmp_path / ".epoch-00000003.x1y2.part").write_text("half")
    fit_killed(2, path_graph, Checkpoints(tmp_path, every=2))
    assert not list(tmp_path.glob(".*.part"))


def test_the_clock_decides_too(path_graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 100_000, 60))  # a minute passes with each call
    monkeypatch.setattr("time.monotonic", lambda: float(next(clock)))
    fit_killed(7, path_graph, Checkpoints(tmp_path, minutes=2.5, keep=9))
    assert epochs_in(tmp_path) == [3, 6]  # looking costs a minute, and so does writing


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "other settings": ({"learning_rate": 0.01}, "learning_rate is 0.001 there and 0.01 here"),
    "more epochs": ({"epochs": 9}, "epochs is 8 there and 9 here"),
    "other seed": ({"random_state": 1}, "random_state is 0 there and 1 here"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_other_settings_are_refused_and_nothing_is_touched(
    path_graph: Graph, tmp_path: Path, case: str
) -> None:
    content = interrupted_run(path_graph, tmp_path)
    setting, words = REFUSED[case]
    with pytest.raises(InputError, match=words):
        fit(path_graph, Checkpoints(tmp_path, every=1), **setting)
    assert contents(tmp_path) == content


def test_another_graph_is_rejected(path_graph: Graph, small_mixed: Graph, tmp_path: Path) -> None:
    content = interrupted_run(path_graph, tmp_path)
    with pytest.raises(InputError, match="it was trained on another graph"):
        fit(small_mixed, Checkpoints(tmp_path))
    assert contents(tmp_path) == content


def interrupted_run(graph: Graph, folder: Path, epoch: int = 5) -> dict[str, bytes]:
    fit_killed(epoch, graph, Checkpoints(folder, every=1, keep=3))
    return contents(folder)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"every": 0}, "every must be an integer"),
        ({"minutes": -1.0}, "minutes must be in"),
        ({"keep": 0}, "keep must be"),
    ],
)
def test_invalid_values_are_rejected(path_graph: Graph, tmp_path: Path, options: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        fit(path_graph, Checkpoints(tmp_path, **options))
    with rejects("checkpoints-need-seed"):
        fit(path_graph, Checkpoints(tmp_path), random_state=None)
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="is a file"):
        fit(path_graph, Checkpoints(tmp_path / "file"))
    with pytest.raises(InputError, match="cannot be written"):
        fit(path_graph, Checkpoints(tmp_path / "file" / "run"))


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Graph, H3GNN]:
    """The checkpoints of epochs 3, 4 and 5 of a run of 8 epochs, its graph, and how it should end."""
    from h3gnn.graphs.checks import check_graph

    graph = check_graph(torch.eye(5), torch.tensor([[0, 1, 2, 3], [1, 2, 3, 4]]))
    folder = tmp_path_factory.mktemp("interrupted")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CheckpointWriter, "_due", lambda _, epoch: 3 <= epoch <= 5)
        fit(graph, Checkpoints(folder, keep=3, keep_finished=True))
    assert epochs_in(folder) == [3, 4, 5]
    return folder, graph, fit(graph)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damage_anywhere_in_any_file_costs_epochs_but_never_the_run(
    tmp_path: Path, interrupted: tuple[Path, Graph, H3GNN], data: st.DataObject
) -> None:
    folder, graph, wanted = interrupted
    shutil.rmtree(tmp_path / "run", ignore_errors=True)
    shutil.copytree(folder, tmp_path / "run")
    files = sorted(checkpoints_in(tmp_path / "run"), key=epoch_of)
    spoilt = data.draw(st.sets(st.sampled_from(files), min_size=1))
    for path in sorted(spoilt):
        path.write_bytes(damaged(path.read_bytes(), data))
    before = {path: path.read_bytes() for path in spoilt}
    if len(spoilt) == len(files):
        with pytest.raises(CheckpointError, match=r"damaged.* has no other usable checkpoint"):
            fit(graph, Checkpoints(tmp_path / "run", every=1))
        assert all(path.read_bytes() == content for path, content in before.items())
    elif files[-1] in spoilt:
        good = max(epoch_of(path) for path in files if path not in spoilt)
        with pytest.warns(CheckpointWarning, match=rf"damaged.*; resuming from .* of epoch {good}"):
            assert_same_bits(fit(graph, Checkpoints(tmp_path / "run", every=1)), wanted)
    else:
        assert_same_bits(fit(graph, Checkpoints(tmp_path / "run", every=1)), wanted)


def damaged(content: bytes, data: st.DataObject) -> bytes:
    """Cut a file short, or change some of its bytes."""
    if data.draw(st.booleans()):
        return content[: data.draw(st.integers(0, len(content) - 1))]
    changed = bytearray(content)
    for place in data.draw(st.sets(st.integers(0, len(content) - 1), min_size=1, max_size=4)):
        changed[place] ^= data.draw(st.integers(1, 255))
    return bytes(changed)


def rewritten(path: Path, **changes: Any) -> None:
    """Put a sound file in a checkpoint's place that says something else."""
    tensors, description = read_tensor_file(path)
    lost = changes.pop("lost", None)
    path.unlink()
    kept = {name: tensor for name, tensor in tensors.items() if name != lost}
    write_tensor_file(path.parent, path.name.rpartition("-")[0], kept, {**description, **changes})


UNUSABLE: dict[str, tuple[dict[str, Any], str]] = {
    "newer format": ({"format_version": 99}, "has format version 99, but this h3gnn reads version 2"),
    "other h3gnn": ({"versions": {"h3gnn": "9.9"}}, "was written by h3gnn 9.9, but this is h3gnn"),
    "other file": ({"format": "diary"}, "was not written by h3gnn as h3gnn-checkpoint"),
    "lost tensor": ({"lost": "step/difficulty"}, "does not match its settings: step/difficulty is missing"),
    "lost history": ({"lost": "history/loss"}, "its history is incomplete"),
    "lost strides": ({"lost": "strides/nodes"}, "strides/nodes is missing"),
    "lost steps": ({"lost": "adam/stepped"}, "adam/stepped is missing"),
    "lost moment": ({"lost": "moments/0.exp_avg"}, r"moments/0\.exp_avg is missing"),
}


@pytest.mark.parametrize("case", UNUSABLE)
def test_an_unusable_checkpoint_is_skipped_with_a_warning(
    tmp_path: Path, interrupted: tuple[Path, Graph, H3GNN], case: str
) -> None:
    folder, graph, wanted = interrupted
    change, words = UNUSABLE[case]
    shutil.copytree(folder, tmp_path / "run")
    rewritten(max(checkpoints_in(tmp_path / "run"), key=epoch_of), **change)
    with pytest.warns(
        CheckpointWarning, match=rf"{words}.*resuming from the previous checkpoint, of epoch 4"
    ):
        assert_same_bits(fit(graph, Checkpoints(tmp_path / "run")), wanted)
    shutil.copytree(folder, tmp_path / "all")
    for path in checkpoints_in(tmp_path / "all"):
        rewritten(path, **change)
    before = contents(tmp_path / "all")
    with pytest.raises(CheckpointError, match=words):
        fit(graph, Checkpoints(tmp_path / "all", every=1))
    assert contents(tmp_path / "all") == before


def test_another_torch_version_is_a_warning(tmp_path: Path, interrupted: tuple[Path, Graph, H3GNN]) -> None:
    folder, graph, wanted = interrupted
    shutil.copytree(folder, tmp_path / "run")
    newest = max(checkpoints_in(tmp_path / "run"), key=epoch_of)
    rewritten(newest, versions={**versions(), "torch": "1.0"})
    with pytest.warns(CheckpointWarning, match=r"written with torch 1\.0, here .*: the last digits"):
        assert_same_bits(fit(graph, Checkpoints(tmp_path / "run")), wanted)


def test_a_damaged_file_never_displaces_a_valid_one(
    tmp_path: Path, interrupted: tuple[Path, Graph, H3GNN]
) -> None:
    folder, graph, wanted = interrupted
    shutil.copytree(folder, tmp_path / "run")
    newest = max(checkpoints_in(tmp_path / "run"), key=epoch_of)
    newest.write_bytes(b"")
    far = newest.rename(newest.with_name(newest.name.replace("00000005", "00000007")))
    with pytest.warns(CheckpointWarning, match="of epoch 4"):
        fit_killed(6, graph, Checkpoints(tmp_path / "run", every=1, keep=1))
    assert epochs_in(tmp_path / "run") == [6, 7]
    assert far.read_bytes() == b""
    with pytest.warns(CheckpointWarning, match="of epoch 6"):
        assert_same_bits(fit(graph, Checkpoints(tmp_path / "run")), wanted)


def test_a_full_disk_does_not_end_the_training(
    path_graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Space for three checkpoints, then none."""
    sync, calls = os.fsync, iter(range(100))

    def full_later(handle: int) -> None:
        if next(calls) >= 6:  # each file, and its folder
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(handle)

    monkeypatch.setattr(os, "fsync", full_later)
    with pytest.warns(CheckpointWarning) as said:
        model = fit(path_graph, Checkpoints(tmp_path / "run", every=1, keep_finished=True))
    assert len(said) == 5
    assert str(said[0].message) == (
        f"no checkpoint after epoch 4: {tmp_path / 'run'} cannot be written (No space left on device); "
        "training continues, and the last one is of epoch 3"
    )
    assert epochs_in(tmp_path / "run") == [2, 3]
    assert not list((tmp_path / "run").glob(".*.part"))
    monkeypatch.undo()
    assert_same_bits(model, fit(path_graph))
    again = fit(path_graph, Checkpoints(tmp_path / "run"))
    assert_same_bits(again, model)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_waits_for_the_epoch_and_writes_a_checkpoint(
    path_graph: Graph, tmp_path: Path, number: signal.Signals
) -> None:
    before = signal.getsignal(number)
    with (
        before_each_epoch(lambda epoch: signal.raise_signal(number) if epoch == 4 else None),
        pytest.raises(TrainingStopped, match="stopped after epoch 5 of 8, with a checkpoint in") as stopped,
    ):
        fit(path_graph, Checkpoints(tmp_path))
    assert stopped.value.signal_number == number
    assert signal.getsignal(number) is before
    assert epochs_in(tmp_path) == [5]
    assert_same_bits(fit(path_graph, Checkpoints(tmp_path)), fit(path_graph))


def ctrl_c_twice() -> None:
    signal.raise_signal(signal.SIGINT)
    signal.raise_signal(signal.SIGINT)


def test_a_second_ctrl_c_does_not_wait(path_graph: Graph, tmp_path: Path) -> None:
    with before_each_epoch(lambda _: ctrl_c_twice()), pytest.raises(KeyboardInterrupt) as stopped:
        fit(path_graph, Checkpoints(tmp_path))
    assert not isinstance(stopped.value, TrainingStopped)


def test_a_signal_that_comes_after_the_last_epoch_is_not_swallowed(tmp_path: Path, path_graph: Graph) -> None:
    with pytest.raises(KeyboardInterrupt), delayed_signals():
        os.kill(os.getpid(), signal.SIGINT)


def test_a_full_disk_at_the_end_is_reported(
    path_graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with (
        before_each_epoch(lambda _: signal.raise_signal(signal.SIGINT)),
        pytest.raises(TrainingStopped, match=r"epoch 1 of 8, but .*No space left.* there is no checkpoint"),
    ):
        fit(path_graph, Checkpoints(tmp_path))


def test_an_ignored_signal_stays_ignored(path_graph: Graph, tmp_path: Path) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with before_each_epoch(lambda _: signal.raise_signal(signal.SIGINT)):
        model = fit(path_graph, Checkpoints(tmp_path))
    assert len(model.history_) == 8


def test_outside_the_main_thread_signals_are_left_alone(path_graph: Graph, tmp_path: Path) -> None:
    models: list[H3GNN] = []
    worker = threading.Thread(target=lambda: models.append(fit(path_graph, Checkpoints(tmp_path))))
    worker.start()
    worker.join()
    assert_same_bits(models[0], fit(path_graph))


def test_two_processes_cannot_train_one_run(path_graph: Graph, tmp_path: Path) -> None:
    with one_process_only(tmp_path), pytest.raises(InputError, match="another process is training this run"):
        fit(path_graph, Checkpoints(tmp_path))
    fit(path_graph, Checkpoints(tmp_path))


def test_a_checkpoint_holds_what_was_promised(interrupted: tuple[Path, Graph, H3GNN]) -> None:
    folder, graph, _ = interrupted
    tensors, description = read_tensor_file(max(checkpoints_in(folder), key=epoch_of))
    parts = {name.split("/")[0] for name in tensors}
    assert parts == {
        *("student", "teacher", "products", "strides", "adam", "moments", "generators", "step", "history")
    }
    assert description["epoch"] == 5
    assert description["fingerprint"]["graph"] == graph.provenance.sha256
    assert json.loads(json.dumps(description)) == description


def test_ctrl_c_keeps_the_model_as_it_is(path_graph: Graph) -> None:
    model = H3GNN.from_preset("single", **QUICK)
    with (
        before_each_epoch(lambda epoch: signal.raise_signal(signal.SIGINT) if epoch == 4 else None),
        pytest.raises(TrainingStopped, match="stopped after epoch 5 of 8; the model is kept"),
    ):
        model.fit(path_graph)
    assert len(model.history_) == 5
    assert model.history_.stopped is None
    assert np.isfinite(model.embedding_).all()
    np.testing.assert_array_equal(model.transform(path_graph), model.embedding_)
    whole = fit(path_graph)
    np.testing.assert_array_equal(model.history_["loss"], whole.history_["loss"][:5])


def test_models_whose_turn_did_not_come_are_untrained(
    path_graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    from h3gnn.training import models

    monkeypatch.setattr(models, "_count_fitting", lambda *_: 1)
    model = H3GNN.from_preset("single", **QUICK, n_models=3)
    began = itertools.count()
    with (
        before_each_epoch(lambda _: signal.raise_signal(signal.SIGINT) if next(began) == 10 else None),
        pytest.raises(TrainingStopped, match="stopped after epoch 3 of 8"),
    ):
        model.fit(path_graph)
    losses = model.history_["loss"]
    assert losses.shape == (8, 3)
    assert np.isfinite(losses).sum(axis=0).tolist() == [8, 3, 0]
    untrained = fit(path_graph, n_models=3, epochs=0)
    np.testing.assert_array_equal(
        np.split(model.embedding_, 3, axis=1)[2], np.split(untrained.embedding_, 3, axis=1)[2]
    )
