from __future__ import annotations

import errno
import os
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from h3gnn import CheckpointError, InputError
from h3gnn.storage.atomic import remove_parts
from h3gnn.storage.schema import FieldError
from h3gnn.storage.tensors import TYPES, ids_of, read_tensor_file, read_tensors, write_tensor_file
from tests.rejects import rejects

TENSORS = {
    "matrix": torch.arange(6.0).view(2, 3),
    "turned": torch.arange(6.0).view(2, 3).T,
    "number": torch.tensor(3.5),
    "nothing": torch.empty(0, 4),
    "odd": torch.tensor([True, False, True]),
    **{f"of {kind}": torch.ones(3).to(kind) for kind in TYPES},
}
DESCRIPTION = {"name": "Zoë", "numbers": [0.1, None]}


def test_h3gnn_and_safetensors_read_a_written_file(tmp_path: Path) -> None:
    path = write_tensor_file(tmp_path, "epoch-3", TENSORS, DESCRIPTION)
    tensors, description = read_tensor_file(path)
    assert description == DESCRIPTION
    for theirs in (tensors, load_file(path)):
        assert theirs.keys() == TENSORS.keys()
        for name, tensor in TENSORS.items():
            assert theirs[name].dtype == tensor.dtype
            assert torch.equal(theirs[name], tensor), name
    assert [left.name for left in tmp_path.iterdir()] == [path.name]


def test_the_same_content_has_the_same_name(tmp_path: Path) -> None:
    first = write_tensor_file(tmp_path, "a", TENSORS, DESCRIPTION)
    assert write_tensor_file(tmp_path, "a", TENSORS, DESCRIPTION) == first
    assert write_tensor_file(tmp_path, "a", TENSORS, {}) != first


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_flipped_byte_is_rejected(tmp_path: Path, data: st.DataObject) -> None:
    path = write_tensor_file(tmp_path, "a", TENSORS, DESCRIPTION)
    content = bytearray(path.read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] ^= data.draw(st.integers(1, 255))
    path.write_bytes(content)
    with rejects("file-damaged", CheckpointError):
        read_tensor_file(path)


def named_by_its_hash(path: Path) -> Path:
    import hashlib

    return path.rename(path.with_name(f"a-{hashlib.sha256(path.read_bytes()).hexdigest()[:16]}.safetensors"))


def test_foreign_and_missing_files_are_rejected(tmp_path: Path) -> None:
    save_file({"weight": torch.ones(2)}, tmp_path / "foreign", metadata={"format": "pt"})
    (tmp_path / "text").write_text("dear diary")
    save_file({"weight": torch.ones(2)}, tmp_path / "half", metadata={"h3gnn": "{"})
    for name, code in (("foreign", "file-foreign"), ("text", "file-foreign"), ("half", "file-damaged")):
        with rejects(code, CheckpointError):
            read_tensor_file(named_by_its_hash(tmp_path / name))
    with rejects("file-unreadable", CheckpointError):
        read_tensor_file(tmp_path / "a-0123456789abcdef.safetensors")


@pytest.mark.parametrize("moment", ["fsync", "replace"])
def test_a_write_that_fails_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os if moment == "fsync" else Path, moment, full)
    with pytest.raises(OSError, match="No space left"):
        write_tensor_file(tmp_path, "a", TENSORS, DESCRIPTION)
    assert not list(tmp_path.iterdir())


def test_a_full_disk_at_the_last_byte_is_an_error(tmp_path: Path) -> None:
    import resource

    size = write_tensor_file(tmp_path, "a", TENSORS, DESCRIPTION).stat().st_size
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        for limit in (1, size // 2, size - 1):
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
            with pytest.raises(OSError, match="File too large"):
                write_tensor_file(tmp_path, "b", TENSORS, DESCRIPTION)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert len(list(tmp_path.iterdir())) == 1


def test_only_temporary_files_of_checkpoints_are_removed(tmp_path: Path) -> None:
    for name in (".epoch-00000003.abc.part", ".start.x.part", "epoch.part", "thesis.part"):
        (tmp_path / name).write_text("x")
    remove_parts(tmp_path, "epoch-")
    assert {path.name for path in tmp_path.iterdir()} == {".start.x.part", "epoch.part", "thesis.part"}


def test_a_signal_waits_until_the_tensors_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within safetensors, what a handler raises becomes another error, or ends the process."""
    path, whole = write_tensor_file(tmp_path, "x", {"a": torch.ones(2)}, {}), list[str]()

    class Opened:
        def __init__(self, *_: object, **__: object) -> None: ...

        def __enter__(self) -> Opened:
            return self

        def __exit__(self, *_: object) -> None:
            whole.append("closed")

        def keys(self) -> list[str]:
            return ["a"]

        def get_tensor(self, name: str) -> torch.Tensor:
            signal.raise_signal(signal.SIGTERM)
            whole.append(name)
            return torch.ones(2)

        def metadata(self) -> None: ...

    def stop(number: int, frame: object) -> None:
        raise SystemExit(143)

    monkeypatch.setattr("safetensors.safe_open", Opened)
    before = signal.signal(signal.SIGTERM, stop)
    try:
        with pytest.raises(SystemExit, match="143"):
            read_tensors(path, InputError)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert whole == ["a", "closed"]


def encoded(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)


def test_node_ids_are_read_as_integers_or_strings() -> None:
    integers = ids_of("ids", encoded("[-9223372036854775808, 9223372036854775807]"), 2)
    assert integers.dtype == np.int64
    assert integers.tolist() == [-(2**63), 2**63 - 1]
    assert ids_of("ids", encoded('["1", "Zo\\u00eb"]'), 2).tolist() == ["1", "Zoë"]
    assert ids_of("ids", encoded("[]"), 0).dtype == np.int64


@pytest.mark.parametrize(
    "text", ["[1, true]", "[1, 2.0]", '[1, "2"]', "[1, null]", "[1, 9223372036854775808]", "[1, 1]", "[1]"]
)
def test_other_node_ids_are_rejected(text: str) -> None:
    with pytest.raises(FieldError):
        ids_of("ids", encoded(text), 2)
