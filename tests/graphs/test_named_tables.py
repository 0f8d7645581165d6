"""Tables by name: verified by the SHA-256 of their rows, written as CSV files, found in local folders."""

from __future__ import annotations

import gzip
import urllib.request
from pathlib import Path

import pytest

from h3gnn.graphs.datasets import NAMED_TABLES, read_named_tables
from tests.graphs.bitcoin import FEW, pin, write_raw
from tests.program import call
from tests.rejects import rejects

RATINGS = "source,target,rating,time\n6,2,4,1289241911.72836\n6,5,2,1289241941.53378\n"
LABELS = "id,label\n6,benign\n5,fraud\n"


def test_the_pinned_files_have_checksums_and_addresses() -> None:
    files = [table.raw for one in NAMED_TABLES.values() for table in one.tables]
    assert all(len(file.sha256) == 64 and file.bytes > 0 and file.of_rows for file in files)
    assert all(file.url.startswith("https://") and file.url.endswith(file.name) for file in files)
    assert all(one.source and one.licence for one in NAMED_TABLES.values())


def test_tables_are_written_with_header_and_class_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pin(FEW, monkeypatch)
    write_raw(tmp_path / "data", FEW)
    out = tmp_path / "bitcoin"
    for _ in range(2):  # unchanged files may be written again
        call("download", "bitcoin-otc", "--out", out, "--data-dir", tmp_path / "data")
    assert (out / "ratings.csv").read_text() == RATINGS
    assert (out / "labels.csv").read_text() == LABELS
    (out / "labels.csv").write_text("id,label\n6,fraud\n")
    with rejects("file-exists"):
        call("download", "bitcoin-otc", "--out", out, "--data-dir", tmp_path / "data")
    assert (out / "labels.csv").read_text() == "id,label\n6,fraud\n"


@pytest.mark.parametrize("header", ["", "FROM_NODE,TO_NODE,TRUST_INDEX,TIME_SINCE_EPOCH\n"])
@pytest.mark.parametrize("ends", ["\n", "\r\n"])
def test_a_local_copy_may_be_unpacked_and_have_a_header(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, header: str, ends: str
) -> None:
    pin(FEW, monkeypatch)
    raw = write_raw(tmp_path, FEW)
    (raw / "soc-sign-bitcoinotc.csv.gz").unlink()
    content = (header + FEW[0]).replace("\n", ends).encode()
    (raw / "soc-sign-bitcoinotc.csv").write_bytes(content)
    assert read_named_tables("Bitcoin-OTC", tmp_path) == {"ratings.csv": RATINGS, "labels.csv": LABELS}


@pytest.mark.parametrize("damage", ["changed", "cut", "row added", "another kind"])
def test_other_content_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str) -> None:
    pin(FEW, monkeypatch)
    path = write_raw(tmp_path, FEW) / "soc-sign-bitcoinotc.csv.gz"
    packed = path.read_bytes()
    changed = {
        "changed": gzip.compress(FEW[0].replace("6,5,2", "6,5,3").encode()),
        "cut": packed[:-12],
        "row added": gzip.compress((FEW[0] + "1,2,3,4\n").encode()),
        "another kind": b"\x1f\x8b\xff\xff",
    }
    path.write_bytes(changed[damage])
    with rejects("checksum-mismatch") as caught:
        read_named_tables("bitcoin-otc", tmp_path)
    assert str(path) in caught.message


def test_without_network_the_error_names_addresses_and_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def offline(*_: object, **__: object) -> None:
        raise OSError("no network")

    monkeypatch.setattr(urllib.request, "urlopen", offline)
    with rejects("download-failed") as caught:
        read_named_tables("bitcoin-otc", tmp_path)
    assert str(tmp_path / "bitcoin-otc" / "raw") in caught.message
    for table in NAMED_TABLES["bitcoin-otc"].tables:
        assert table.raw.url in caught.message


def test_unknown_names_are_rejected_and_known_ones_listed() -> None:
    with rejects("tables-unknown") as caught:
        read_named_tables("bitcoin")
    assert "bitcoin-otc" in caught.message
    assert "h3gnn download bitcoin-otc" in call("datasets")
