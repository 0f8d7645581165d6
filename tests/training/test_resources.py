from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest

from h3gnn.errors import InputError
from h3gnn.training.memory import LIBRARIES, Size, parse_memory, pick_chunk, pick_group

MEASURE = r"""
import re, sys, torch
torch.set_num_threads(1)
from h3gnn.estimator import H3GNN
from h3gnn.graphs.checks import check_graph
def peak():  # of this program alone: getrusage counts the one that started it, too
    return 1024 * int(re.search(r"VmHWM:\s+(\d+) kB", open("/proc/self/status").read())[1])
nodes, chunk, features, channels = 8000, int(sys.argv[1]), 64, 64
generator = torch.Generator().manual_seed(0)
edges = torch.randint(nodes, (2, 10 * nodes), generator=generator)
graph = check_graph(torch.randn(nodes, features, generator=generator), edges)
import h3gnn.training.models as models
models.CHUNK = {"cpu": chunk}
model = H3GNN(epochs=0, channels=channels, device="cpu", precision=sys.argv[2])
model._encode = lambda *_: None
model.fit(graph)
before = peak()
model.epochs = 2
model.fit(graph)
print(peak() - before, before)
print(model.support_.pattern.entries)
"""

SIZE = Size(
    nodes=8000,
    entries=159_000,
    features=64,
    channels=64,
    hops=2,
    first_width=64 + 256 + 128,
    mlp_width=256,
    heads=4,
    models=1,
)


def test_sizes_are_read_as_people_write_them() -> None:
    assert parse_memory("8GB") == 8 * 10**9
    assert parse_memory(" 1.5 GiB ") == 3 * 2**29
    assert parse_memory(12345) == 12345
    for wrong in ("", "8 apples", "GB", "-1GB", "0", True):
        with pytest.raises(InputError, match="8GB"):
            parse_memory(wrong)


def test_the_chunk_takes_what_is_left() -> None:
    fixed = LIBRARIES + SIZE.outside_chunk()
    assert pick_chunk(fixed + 100 * SIZE.per_chunk_node(), SIZE, 1024) == 100
    assert pick_chunk(fixed + 10**12, SIZE, 1024) == 1024
    with pytest.raises(InputError, match="mini-batches"):
        pick_chunk(fixed, SIZE, 1024)


def test_where_not_all_models_fit_some_train_at_a_time() -> None:
    two = replace(SIZE, models=2)
    budget = LIBRARIES + two.outside_chunk() + 100 * two.per_chunk_node()
    assert pick_group(budget, replace(SIZE, models=5), 1024) == (2, 100)
    assert pick_group(10 * budget, replace(SIZE, models=5), 1024) == (5, 1024 // 5)
    alone = LIBRARIES + SIZE.outside_chunk() + 70 * SIZE.per_chunk_node()
    assert pick_group(alone, replace(SIZE, models=5), 1024) == (1, 70)
    with pytest.raises(InputError, match="mini-batches"):
        pick_group(LIBRARIES, replace(SIZE, models=5), 1024)


@pytest.mark.parametrize(("chunk", "precision"), [(64, "float32"), (4000, "float32"), (4000, "bfloat16")])
def test_the_formula_bounds_the_measured_peak(chunk: int, precision: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", MEASURE, str(chunk), precision],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    grown, before = (int(one) for one in done.stdout.split()[:2])
    predicted = SIZE.outside_chunk() + chunk * SIZE.per_chunk_node()
    assert before < 1.5 * LIBRARIES
    assert grown < 1.1 * predicted
    assert predicted < 4 * grown
