from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp
import torch

from h3gnn import H3GNN, InputError
from h3gnn.graphs.convert import as_graph
from h3gnn.graphs.formats import read_graph_file
from h3gnn.resources import available_memory, check_memory, format_bytes
from h3gnn.tables.read import read_graph
from tests.rejects import rejects

EDGES = np.array([[0, 1, 2], [1, 2, 3]])


def test_more_than_is_free_is_refused_with_how_much_and_for_what() -> None:
    check_memory(0, "nothing")
    check_memory(2**20, "a little")
    with pytest.raises(InputError, match=r"^not enough memory for a dream: 1e\+03 PB needed, .* available$"):
        check_memory(10**18, "a dream")
    assert 0 < available_memory() < 2**60
    assert [format_bytes(size) for size in (7, 2_500, 3 * 10**9)] == ["7 bytes", "2.5 KB", "3 GB"]


def test_a_limit_of_the_process_counts_as_its_memory() -> None:
    code = (
        "import resource; from h3gnn.resources import available_memory\n"
        "resource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30))\n"
        "assert 0 < available_memory() < 2**30"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("columns", [10**8, 10**12])
def test_a_matrix_of_many_declared_columns_is_refused_before_anything_is_allocated(columns: int) -> None:
    matrix = sp.csr_matrix((np.ones(2), ([0, 1], [0, 1])), shape=(4, columns))
    with rejects("not-enough-memory"):
        H3GNN(n_models=1, epochs=1).fit(matrix, edge_index=EDGES)


def test_an_empty_matrix_is_not_made_dense() -> None:
    with rejects("not-enough-memory"):
        as_graph(sp.csr_matrix((4, 10**12)), EDGES)


def test_many_declared_nodes_are_refused(tmp_path: Path) -> None:
    torch.save({"edge_index": torch.from_numpy(EDGES), "num_nodes": 10**12}, tmp_path / "g.pt")
    np.savez(tmp_path / "g.npz", edges=np.array([[0, 10**12]]))
    for name in ("g.pt", "g.npz"):
        with rejects("not-enough-memory"):
            read_graph_file(tmp_path / name)
    with rejects("not-enough-memory"):
        as_graph(sp.coo_array((np.ones(1), ([0], [1])), shape=(10**12, 10**12)))


def test_values_that_a_tensor_only_pretends_to_have_are_refused(tmp_path: Path) -> None:
    parts = {"edge_index": torch.from_numpy(EDGES), "x": torch.ones(1, 1).expand(10**12, 1)}
    torch.save(parts, tmp_path / "g.pt")
    with rejects("not-enough-memory"):
        read_graph_file(tmp_path / "g.pt")


def test_an_array_that_declares_more_than_it_holds_is_refused(tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_text("0,1\n1,2\n")
    with (tmp_path / "f.npy").open("wb") as file:
        told = {"descr": "<f8", "fortran_order": False, "shape": (10**6, 10)}
        np.lib.format.write_array_header_1_0(file, told)
    with rejects("file-damaged") as caught:
        read_graph(tmp_path / "e.csv", features=tmp_path / "f.npy")
    assert "declares 80 MB, but has 128 bytes" in caught.message


def test_rows_that_share_a_long_text_are_measured_before_each_has_one(tmp_path: Path) -> None:
    rows = pa.array(np.zeros(2_000_000, dtype=np.int32))
    source = pa.DictionaryArray.from_arrays(rows, pa.array(["x" * 10**6]))
    pq.write_table(pa.table({"source": source, "target": rows}), tmp_path / "e.parquet")
    with rejects("not-enough-memory"):
        read_graph(tmp_path / "e.parquet")


def test_hops_without_end_are_refused() -> None:
    with rejects("not-enough-memory"):
        H3GNN(hops=100, channels=65_536, n_models=1, epochs=1).fit(np.eye(20))
    with pytest.raises(InputError, match="hops must be at most 100, not 999,999"):
        H3GNN(hops=999_999, n_models=1, epochs=1).fit(np.eye(20))


REUSED = """
import resource
import numpy as np
import torch
from h3gnn import H3GNN
from h3gnn.resources import retain_heap

def pages() -> int:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(10_000_000)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def settled() -> int:
    return [pages() for _ in range(8)][-1]  # the first ones may find no place of their size

H3GNN(epochs=1, n_models=1, channels=8).fit(np.eye(20))  # leaves malloc of the process alone
outside = settled()
retain_heap()
print(outside, settled())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's malloc")
def test_programs_reuse_freed_memory_and_fit_leaves_malloc_alone() -> None:
    def run(**more: str) -> list[int]:
        ours = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
        command = [sys.executable, "-c", REUSED]
        printed = subprocess.run(command, env=ours | more, check=True, capture_output=True, text=True).stdout
        return [int(count) for count in printed.split()]

    outside, inside = run()
    assert inside < 100 < outside
    assert run(MALLOC_TOP_PAD_="131072")[1] > 100  # the user's own settings are kept


STARVED = """
import resource, sys
from pathlib import Path
import h3gnn.ondisk.prepare, pandas, pyarrow.csv, pyarrow.parquet
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + int(sys.argv[1]) * 2**20,) * 2)
from h3gnn.errors import InputError
try:
    h3gnn.ondisk.prepare.prepare_graph(*sys.argv[2:])
except InputError as error:
    print(error)
    sys.exit(2)
"""


@pytest.mark.parametrize("megabytes", [20, 60])
def test_preparing_with_little_memory_left_ends_in_a_sentence_and_leaves_nothing(
    tmp_path: Path, megabytes: int
) -> None:
    (tmp_path / "e.csv").write_text("source,target\n" + "0,1\n" * 1000)
    (tmp_path / "f.csv").write_text("id,f0\n0,1\n1,2\n")
    command = [
        sys.executable,
        "-c",
        STARVED,
        str(megabytes),
        *(str(tmp_path / name) for name in ("e.csv", "f.csv")),
    ]
    outcome = subprocess.run([*command, str(tmp_path / "out")], check=False, capture_output=True, text=True)
    assert outcome.returncode == 2, outcome.stderr
    assert "not enough memory for" in outcome.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["e.csv", "f.csv"]


LITTLE_LEFT = """
import resource
import numpy as np
from pathlib import Path
from scipy.linalg.blas import sgemm
from h3gnn.errors import InputError
from h3gnn.resources import preload_blas

def leave(size):
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + size, resource.RLIM_INFINITY))

leave(20 * 10**6)
try:
    preload_blas()
except InputError as error:
    print(error)
leave(3 * 10**9)
preload_blas()
leave(10**6)
ones = np.ones((200, 200), dtype=np.float32)
sgemm(1.0, ones @ ones, ones)
print("multiplied")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the address space has no limit")
def test_matrices_are_multiplied_or_refused_where_little_is_left() -> None:
    """OpenBLAS asks again and again for a buffer that it does not get: such a process hangs."""
    command = [sys.executable, "-c", LITTLE_LEFT]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert ended.returncode == 0, ended.stderr
    assert "linear algebra: " in ended.stdout
    assert ended.stdout.endswith("multiplied\n")
