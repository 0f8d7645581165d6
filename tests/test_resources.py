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

from h3gnn import H3GNN
from h3gnn.graphs.convert import as_graph
from h3gnn.graphs.formats import read_graph_file
from h3gnn.resources import available_memory, check_memory, format_bytes
from h3gnn.tables.read import read_graph
from tests.rejects import rejects

EDGES = np.array([[0, 1, 2], [1, 2, 3]])


def test_an_allocation_beyond_available_memory_is_rejected() -> None:
    check_memory(0, "nothing")
    check_memory(2**20, "a small array")
    with rejects("not-enough-memory") as caught:
        check_memory(10**18, "an array")
    assert caught.message.startswith("not enough memory for an array: 1e+03 PB needed, ")
    assert 0 < available_memory() < 2**60
    assert [format_bytes(size) for size in (7, 2_500, 3 * 10**9)] == ["7 bytes", "2.5 KB", "3 GB"]


def test_a_process_limit_reduces_available_memory() -> None:
    code = (
        "import resource; from h3gnn.resources import available_memory\n"
        "resource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30))\n"
        "assert 0 < available_memory() < 2**30"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("columns", [10**8, 10**12])
def test_a_matrix_that_declares_many_columns_is_rejected(columns: int) -> None:
    matrix = sp.csr_matrix((np.ones(2), ([0, 1], [0, 1])), shape=(4, columns))
    with rejects("not-enough-memory"):
        H3GNN(n_models=1, epochs=1).fit(matrix, edge_index=EDGES)


def test_an_empty_matrix_is_not_made_dense() -> None:
    with rejects("not-enough-memory"):
        as_graph(sp.csr_matrix((4, 10**12)), EDGES)


def test_files_that_declare_many_nodes_are_rejected(tmp_path: Path) -> None:
    torch.save({"edge_index": torch.from_numpy(EDGES), "num_nodes": 10**12}, tmp_path / "g.pt")
    np.savez(tmp_path / "g.npz", edges=np.array([[0, 10**12]]))
    for name in ("g.pt", "g.npz"):
        with rejects("not-enough-memory"):
            read_graph_file(tmp_path / name)
    with rejects("not-enough-memory"):
        as_graph(sp.coo_array((np.ones(1), ([0], [1])), shape=(10**12, 10**12)))


def test_expanded_tensors_are_measured_by_their_shape(tmp_path: Path) -> None:
    parts = {"edge_index": torch.from_numpy(EDGES), "x": torch.ones(1, 1).expand(10**12, 1)}
    torch.save(parts, tmp_path / "g.pt")
    with rejects("not-enough-memory"):
        read_graph_file(tmp_path / "g.pt")


def test_an_array_that_declares_more_than_its_file_holds_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_text("0,1\n1,2\n")
    with (tmp_path / "f.npy").open("wb") as file:
        header = {"descr": "<f8", "fortran_order": False, "shape": (10**6, 10)}
        np.lib.format.write_array_header_1_0(file, header)
    with rejects("file-damaged") as caught:
        read_graph(tmp_path / "e.csv", features=tmp_path / "f.npy")
    assert "declares 80 MB, but has 128 bytes" in caught.message


def test_dictionary_encoded_text_is_measured_before_it_is_decoded(tmp_path: Path) -> None:
    rows = pa.array(np.zeros(2_000_000, dtype=np.int32))
    source = pa.DictionaryArray.from_arrays(rows, pa.array(["x" * 10**6]))
    pq.write_table(pa.table({"source": source, "target": rows}), tmp_path / "e.parquet")
    with rejects("not-enough-memory"):
        read_graph(tmp_path / "e.parquet")


def test_an_encoder_that_is_too_large_is_rejected() -> None:
    with rejects("not-enough-memory"):
        H3GNN(hops=100, channels=65_536, n_models=1, epochs=1).fit(np.eye(20))
    with rejects("value-invalid"):
        H3GNN(hops=999_999, n_models=1, epochs=1).fit(np.eye(20))


REUSED = """
import os, resource
import numpy as np
import torch
from h3gnn import H3GNN
from h3gnn.resources import retain_heap

def new_pages() -> int:
    for _ in range(8):  # the first allocations may find no free block of their size
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        torch.ones(10_000_000)
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    return faults

H3GNN(epochs=1, n_models=1, channels=8).fit(np.eye(20))  # does not change malloc
after_fit = new_pages()
os.environ["MALLOC_TOP_PAD_"] = "131072"
retain_heap()  # the user's settings have priority
with_variable = new_pages()
del os.environ["MALLOC_TOP_PAD_"]
retain_heap()
print(after_fit, with_variable, new_pages())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's malloc")
def test_programs_reuse_freed_memory_and_fit_does_not_change_malloc() -> None:
    ours = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    command = [sys.executable, "-c", REUSED]
    printed = subprocess.run(command, env=ours, check=True, capture_output=True, text=True).stdout
    after_fit, with_variable, retained = map(int, printed.split())
    assert retained < 100 < min(after_fit, with_variable)


STARVED = """
import resource, sys
from pathlib import Path
import h3gnn.ondisk.prepare, pandas, pyarrow.csv, pyarrow.parquet
from h3gnn.errors import InputError

for megabytes in (20, 60):
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + megabytes * 2**20, resource.RLIM_INFINITY))
    try:
        h3gnn.ondisk.prepare.prepare_graph("e.csv", "f.csv", "out")
    except InputError as error:
        print(error.code)
    print(sorted(path.name for path in Path().iterdir()))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the address space has no limit")
def test_preparing_with_too_little_memory_is_rejected_and_leaves_no_files(tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_text("source,target\n" + "0,1\n" * 1000)
    (tmp_path / "f.csv").write_text("id,f0\n0,1\n1,2\n")
    command = [sys.executable, "-c", STARVED]
    done = subprocess.run(command, cwd=tmp_path, check=False, capture_output=True, text=True)
    assert done.stdout.splitlines() == ["not-enough-memory", "['e.csv', 'f.csv']"] * 2, done.stderr


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
    print(error.code)
leave(3 * 10**9)
preload_blas()
leave(10**6)
ones = np.ones((200, 200), dtype=np.float32)
sgemm(1.0, ones @ ones, ones)
print("multiplied")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the address space has no limit")
def test_blas_buffers_are_allocated_or_rejected_early() -> None:
    command = [sys.executable, "-c", LITTLE_LEFT]  # without the buffers OpenBLAS retries forever
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.stdout.splitlines() == ["not-enough-memory", "multiplied"], done.stderr
