"""`h3gnn datasets` from the outside."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from h3gnn.cli.inspect import datasets


def run(*arguments: str) -> Any:
    app = typer.Typer()
    app.command()(datasets)
    return CliRunner().invoke(app, arguments)


def test_nine_rows_with_sizes_source_licence_and_cache(tmp_path: Path) -> None:
    result = run("--json", "--data-dir", str(tmp_path))
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)
    assert len(rows) == 9
    texas = next(row for row in rows if row["name"] == "texas")
    assert (texas["nodes"], texas["edges"], texas["edge_homophily"]) == (183, 325, 0.108)
    assert all(row["source"] and row["licence"] and row["cached"] is False for row in rows)


def test_the_table_fits_and_tells_the_notes(tmp_path: Path) -> None:
    lines = run("--data-dir", str(tmp_path)).stdout.splitlines()
    assert all(len(line) <= 80 for line in lines[:10])
    assert any("chameleon-filtered" in line and "0.236" in line for line in lines)
    assert any("byte for byte" in line for line in lines)


@pytest.mark.skipif(not os.environ.get("H3GNN_DATA"), reason="H3GNN_DATA does not point at the raw files")
def test_the_shared_files_count_as_cached() -> None:
    assert all(row["cached"] for row in json.loads(run("--json").stdout))
