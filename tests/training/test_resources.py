from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from h3gnn.settings import parse_memory
from h3gnn.training.resources import (
    LIBRARIES,
    MemoryEstimate,
    _cpu_bfloat16,
    models_at_once,
    pick_group,
    use_bfloat16,
)
from tests.program import run
from tests.rejects import rejects

MEASURE = r"""
import json, re, sys, torch
from dataclasses import asdict
import h3gnn.estimator as estimator
import h3gnn.training.models as models
from h3gnn.graphs.checks import check_graph
def peak():
    return 1024 * int(re.search(r"VmHWM:\s+(\d+) kB", open("/proc/self/status").read())[1])
nodes, chunk, features, channels = 4000, int(sys.argv[1]), 64, 64
generator = torch.Generator().manual_seed(0)
edges = torch.randint(nodes, (2, 10 * nodes), generator=generator)
graph = check_graph(torch.randn(nodes, features, generator=generator), edges)
sizes = []
models.pick_group = lambda budget, size, largest: sizes.append(size) or (1, chunk)
small = {"epochs": 0, "channels": channels, "precision": sys.argv[2]}
model = estimator.H3GNN.from_preset("single", **small, device="cpu", memory="1TB")
estimator.FittedEncoder.embed_fitted = lambda self: None
model.fit(graph)
before = peak()
model.epochs = 2
model.fit(graph)
print(json.dumps({"grown": peak() - before, "before": before, "size": asdict(sizes[-1])}))
"""

SIZE = MemoryEstimate(
    nodes=4000,
    entries=79_760,
    features=64,
    channels=64,
    hops=2,
    first_width=64 + 256 + 128,
    mlp_width=256,
    heads=4,
    models=1,
    fused_tokens=4,
)


def test_memory_decides_how_many_fit() -> None:
    # One model: 4 · (6 · 1000 + 10 · 100) = 28,000 bytes, of which 60 % of the free memory may be used.
    assert models_at_once(8, 1000, 100, 10, free=1_000_000) == 8
    assert models_at_once(64, 1000, 100, 10, free=1_000_000) == 21
    assert models_at_once(8, 1000, 100, 10, free=10) == 1


def test_precision_is_what_was_asked_for() -> None:
    cpu = torch.device("cpu")
    assert use_bfloat16("bfloat16", cpu)
    assert not use_bfloat16("float32", cpu)


@pytest.mark.parametrize(
    ("flags", "native"),
    [("avx2 avx512f", False), ("avx512f avx512_bf16 fma", True), ("amx_bf16 amx_tile", True), (None, False)],
)
def test_auto_is_bfloat16_where_the_processor_says_that_it_computes_in_it(
    flags: str | None, native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = SimpleNamespace(exists=lambda: flags is not None, read_text=lambda errors: f"flags\t\t: {flags}\n")
    monkeypatch.setattr("h3gnn.training.resources.Path", lambda path: {"/proc/cpuinfo": info}[path])
    _cpu_bfloat16.cache_clear()
    try:
        assert use_bfloat16("auto", torch.device("cpu")) is native
    finally:
        _cpu_bfloat16.cache_clear()


def test_sizes_are_read_as_people_write_them() -> None:
    assert parse_memory("8GB") == 8 * 10**9
    assert parse_memory(" 1.5 GiB ") == 3 * 2**29
    assert parse_memory(12345) == 12345
    for wrong in ("", "8 apples", "GB", "-1GB", "0", True):
        with rejects("value-invalid"):
            parse_memory(wrong)


def test_the_chunk_fills_the_budget() -> None:
    fixed = LIBRARIES + SIZE.outside_chunk()
    assert pick_group(fixed + 100 * SIZE.per_chunk_node(), SIZE, 1024) == (1, 100)
    assert pick_group(fixed + 10**12, SIZE, 1024) == (1, 1024)
    with rejects("not-enough-memory"):
        pick_group(fixed, SIZE, 1024)


def test_where_not_all_models_fit_some_train_at_a_time() -> None:
    two = replace(SIZE, models=2)
    budget = LIBRARIES + two.outside_chunk() + 100 * two.per_chunk_node()
    assert pick_group(budget, replace(SIZE, models=5), 1024) == (2, 100)
    assert pick_group(10 * budget, replace(SIZE, models=5), 1024) == (5, 1024 // 5)
    alone = LIBRARIES + SIZE.outside_chunk() + 70 * SIZE.per_chunk_node()
    assert pick_group(alone, replace(SIZE, models=5), 1024) == (1, 70)
    with rejects("not-enough-memory"):
        pick_group(LIBRARIES, replace(SIZE, models=5), 1024)


@pytest.mark.parametrize(("chunk", "precision"), [(64, "float32"), (2000, "float32"), (2000, "bfloat16")])
def test_the_estimate_bounds_the_measured_peak(tmp_path: Path, chunk: int, precision: str) -> None:
    done = run(chunk, precision, cwd=tmp_path, code=MEASURE)
    assert done.returncode == 0, done.stderr
    measured = json.loads(done.stdout)
    assert measured["size"] == asdict(SIZE)
    predicted = SIZE.outside_chunk() + chunk * SIZE.per_chunk_node()
    assert measured["before"] < 1.5 * LIBRARIES
    assert measured["grown"] < 1.1 * predicted
    assert predicted < 4 * measured["grown"]
