"""Small graphs shared by all tests."""

from __future__ import annotations

import os

import pytest
import torch

from h3gnn.encoder.sparse import csr_tensor
from h3gnn.graphs.checks import check_graph
from h3gnn.graphs.graph import Graph
from h3gnn.graphs.synthetic import mixed_graph

torch.set_num_threads(1)  # the graphs are small, and the tests run in several processes
if not torch.cuda.is_available():
    # Triton reads it when it is first imported, which may happen in any test
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture(scope="session", autouse=True)
def _csr_warning() -> None:
    """Trigger torch's one-time warning that the CSR layout is in beta."""
    csr_tensor(torch.tensor([0, 0]), torch.empty(0, dtype=torch.long), torch.empty(0), (1, 1))


@pytest.fixture
def path_graph() -> Graph:
    """0 – 1 – 2 – 3 – 4, with one-hot features."""
    edge_index = torch.tensor([[0, 1, 1, 2, 2, 3, 3, 4], [1, 0, 2, 1, 3, 2, 4, 3]])
    return check_graph(torch.eye(5), edge_index, labels=[0, 0, 0, 1, 1])


@pytest.fixture(scope="session")
def small_mixed() -> Graph:
    """A hundred nodes of mixed homophily."""
    return mixed_graph(100, words=60, splits=3)
