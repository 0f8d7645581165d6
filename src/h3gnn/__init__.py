"""h3gnn: node embeddings without labels, for graphs that mix homophily and heterophily."""

from h3gnn.errors import GraphError, InputError, ModelFolderError
from h3gnn.estimator import H3GNN
from h3gnn.graphs.graph import Graph
from h3gnn.training.collapse import CollapseWarning

__version__ = "0.1.0"

__all__ = ["H3GNN", "CollapseWarning", "Graph", "GraphError", "InputError", "ModelFolderError", "__version__"]
