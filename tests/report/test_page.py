from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.pages import made_up_committee, made_up_findings, made_up_maps, made_up_page, made_up_tables
from h3gnn.report.findings import RAW, TRAINED, Findings, Floats, OtherRun
from h3gnn.report.page import (
    COARSE,
    Packer,
    balance_columns,
    colour_indices,
    page_maps,
    read_asset,
    render_page,
)

NASTY = "</script><script>alert(1)</script>"


def unpack(text: str) -> tuple[dict[str, Any], bytes]:
    """Read the data of a page, independently of its script."""
    content = gzip.decompress(base64.b64decode(text))
    (length,) = struct.unpack_from("<I", content)
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def data_of(page: str) -> tuple[dict[str, Any], bytes]:
    found = re.search(r'<script type="application/octet-stream" id="data">([A-Za-z0-9+/=]+)</script>', page)
    assert found
    return unpack(found[1])


def array(described: dict[str, Any], content: bytes) -> np.ndarray:
    return np.frombuffer(
        content, np.dtype(described["kind"]).newbyteorder("<"), described["length"], described["at"]
    )


def test_arrays_come_back_from_the_packer() -> None:
    packer = Packer()
    data = {
        "small": packer.whole(np.array([3, 0, 255])),
        "large": packer.whole(np.array([70_000, 1])),
        "scaled": packer.scaled(np.array([-2.0, np.nan, 6.0, 2.0])),
        "flat": packer.scaled(np.array([5.0, 5.0])),
        "coarse": packer.scaled(np.array([0.5, np.nan, 1.0]), low=0.0, kind=COARSE),
    }
    data, content = unpack(packer.pack(data))
    assert [data[name]["kind"] for name in data] == ["uint8", "uint32", "uint16", "uint16", "uint8"]
    assert array(data["small"], content).tolist() == [3, 0, 255]
    assert array(data["large"], content).tolist() == [70_000, 1]
    steps = array(data["scaled"], content)
    assert steps[1] == 65_535
    values = data["scaled"]["low"] + data["scaled"]["step"] * steps[[0, 2, 3]]
    np.testing.assert_allclose(values, [-2, 6, 2], atol=1e-4)
    assert data["flat"]["low"] == 5.0
    assert array(data["flat"], content).tolist() == [0, 0]
    assert array(data["coarse"], content).tolist() == [127, 255, 254]


def packed(findings: Findings) -> tuple[dict[str, Any], bytes]:
    return data_of(render_page(findings, made_up_maps(findings)))


def test_weights_and_their_changes_keep_their_signs() -> None:
    findings = made_up_findings(20)
    assert findings.neighbors is not None
    weight = np.linspace(-2.4, 1.5, len(findings.neighbors.weight), dtype=np.float32)
    data, content = packed(replace(findings, neighbors=replace(findings.neighbors, weight=weight)))
    change = weight / findings.neighbors.start - 1
    for name, values, error in (("weight", weight, 0.01), ("change", change, 1e-3)):
        kept = data["neighbors"][name]
        np.testing.assert_allclose(kept["low"] + kept["step"] * array(kept, content), values, atol=error)


def test_the_page_loads_nothing_and_is_small() -> None:
    page = made_up_page(50_000)
    assert len(page) < 6 * 2**20
    code = re.sub(r'id="data">[^<]*<', "<", page)
    assert not re.search(r"https?:|[\"'(=]\s*//|@import|\bfetch\(|XMLHttpRequest|WebSocket", code)
    assert re.findall(r'\b(?:src|href)="([^"#][^"]*)"', code) == ["data:,"]


def test_only_the_pages_own_script_may_run() -> None:
    findings = replace(made_up_findings(20), title=NASTY, ids=(NASTY, "{{data}}", *map(str, range(18))))
    page = render_page(findings, made_up_maps(findings))
    assert NASTY not in page
    assert page.count("<script") == 2
    for kind in ("script", "style"):
        (text,) = re.findall(rf"<{kind}>(.*?)</{kind}>", page, re.S)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in page
    assert data_of(page)[0]["ids"][:2] == [NASTY, "{{data}}"]


def test_nan_is_null_and_unknown_categories_are_zero() -> None:
    findings = made_up_findings(30)
    data, content = packed(findings)
    assert data["history"]["effective_rank"][:2] == [[40.0], [None]]
    assert (data["members"], data["bestMembers"], data["notes"]) == ([], [], {})  # one objective
    assert [row["colour"] for row in data["scores"]["rows"]] == [7, 1, 0]
    split = next(one for one in data["categories"] if one["key"] == "split")
    np.testing.assert_array_equal(array(split["values"], content), findings.categories[4].values + 1)


def test_members_have_colours_and_notes() -> None:
    data, _ = packed(made_up_committee(30))
    teacher, edges = data["members"]
    assert teacher == {
        "name": "teacher", "models": [0, 1], "loss": 0.0105, "rank": 60.0, "share": 0.6, "colour": 2
    }  # fmt: skip
    assert [row["colour"] for row in data["scores"]["rows"]] == [7, 1, 0, teacher["colour"], edges["colour"]]
    assert data["bestMembers"][0]["members"] == ["edges"]
    assert "divided by the sum of all members' ranks" in data["notes"]["share"]
    places = colour_indices([f"member {i}" for i in range(9)])
    assert [places[f"member {i}"] for i in range(9)] == [2, 3, 4, 5, 6, 8, 9, 10, 11]
    assert places["H3GNN: member 3"] == places["member 3"]


def test_tables_have_types_paths_and_names() -> None:
    findings = made_up_tables(20)
    assert findings.attention is not None
    data, content = packed(findings)
    assert data["tables"]["ends"] == ["loan", "loan", "loan", "account", "order", "client"]
    assert data["tables"]["relations"] == [["same district", 60]]
    assert [columns for _, columns in data["tables"]["paths"]] == [5, 12, 7]
    assert data["tokens"][3:] == [path for path, _ in data["tables"]["paths"]]
    assert data["names"][7] == "Loan no. 7"
    stored = data["attention"]
    shares = stored["low"] + stored["step"] * array(stored, content).reshape(20, 6)
    np.testing.assert_allclose(shares, findings.attention, atol=1e-4)


def test_the_documentation_matches_the_measurements() -> None:
    root = Path(__file__).parent.parent.parent
    rows = json.loads((root / "benchmarks" / "results" / "page.json").read_text())["rows"]
    document = (root / "docs" / "report.md").read_text()
    largest = max(rows, key=lambda row: int(row["nodes"]))
    assert largest["nodes"] == 50_000
    assert largest["open_worst_ms"] < 3000
    files = (root / "src/h3gnn/report/assets").iterdir()
    weight = sum(len(read_asset(path.name).encode()) for path in files)
    assert 50_000 < weight < 86_000
    assert "together weigh under 86 kB" in document


def test_features_that_one_column_decides_are_scaled_for_the_map() -> None:
    random = np.random.default_rng(0)
    shares = random.random((50, 3)).astype(np.float32)
    same, scaled = balance_columns(shares)
    assert not scaled
    assert same is shares
    amounts = np.column_stack([shares, 10_000 * shares[:, :1]])
    found, scaled = balance_columns(amounts)
    assert scaled
    np.testing.assert_allclose(found.std(axis=0), 1, rtol=1e-5)
    assert not balance_columns(amounts[:, 3:])[1]  # there is nothing that it could outweigh
    findings = replace(made_up_findings(50), embeddings={RAW: amounts, TRAINED: shares})
    assert list(page_maps(findings, method="pca")) == ["H3GNN embedding, PCA", "raw features, scaled, PCA"]


def test_another_run_replaces_the_raw_features() -> None:
    rows: Floats = np.random.default_rng(0).random((50, 3))
    other = OtherRun("other run: b", {"epochs": (50, 20), "objective": (["teacher", "edges"], "edges")})
    embeddings = dict.fromkeys((RAW, TRAINED, other.name), rows)
    findings = replace(made_up_findings(50), embeddings=embeddings, other=other)
    maps = page_maps(findings, method="pca")
    assert list(maps) == ["this run, PCA", "other run: b, PCA"]
    data, _ = data_of(render_page(findings, maps))
    assert data["other"]["rows"] == [["epochs", "50", "20"], ["objective", "teacher, edges", "edges"]]
