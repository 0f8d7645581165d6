"""H3GNN: the method as a scikit-learn transformer."""

from __future__ import annotations

import numbers
import warnings
from dataclasses import fields
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import Tags, check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from h3gnn import storage
from h3gnn.arguments import check_arguments
from h3gnn.encoder import FeatureMatrix, JointEncoder, Support, build_support
from h3gnn.encoder.support import attach_nodes, find_entries
from h3gnn.errors import GraphError, InputError
from h3gnn.graphs.convert import as_graph
from h3gnn.graphs.graph import Graph
from h3gnn.graphs.matching import match_nodes, match_rows
from h3gnn.graphs.nearest import find_nearest, nearest_neighbour_graph
from h3gnn.graphs.scaling import FeatureScaler, fit_scaler
from h3gnn.presets import PRESETS
from h3gnn.training.collapse import CollapseWarning, collapse_epochs
from h3gnn.training.models import Training, train_models
from h3gnn.training.resources import pick_device, use_bfloat16


class H3GNN(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Node embeddings without labels, for graphs that mix homophily and heterophily.

    A student encoder sees a masked graph and predicts what its teacher, a moving average of itself, makes of
    the whole graph; the nodes that are hard to predict are masked more often. See docs/method.md.

    The defaults are for a graph that nobody has tuned for; `H3GNN.from_preset("paper")` is the paper's
    equations as printed.

    Args:
        channels: width C of a token.
        hops: K, one weighted-GCN token for each hop 1…K.
        hidden_channels: hidden width of the token MLP and the weighted GCNs; None is 4C and C.
        heads: attention heads; must divide `channels`.
        norm: place of the norm in the Transformer block: "residual-post", "post" or "pre".
        fusion: "attention", or "mlp" for the ablation without attention.
        output: "flatten" keeps all tokens (D = (2 + hops)·C), "first" only the first (D = C).
        edge_start: "normalized" starts each edge weight at its entry of Ã; a number starts all there.
        self_loops: whether a node's neighbourhood includes itself.
        normalize: multiply each learned edge weight with its entry of Ã.
        batch_norm: batch norm between the layers of a weighted GCN.
        undirected: let messages flow both ways along each edge.
        token_dropout, attention_dropout: dropout rates in training.
        objective: "teacher", or "decoder" for the ablation that rebuilds raw features.
        teacher_mode: "eval" keeps the teacher free of dropout; "train" does as the released code.
        momentum: α of the teacher's moving average.
        mask: "random", "difficulty" or "probability".
        mask_ratio: R, the share of nodes to mask.
        exploit_ratio: r, the share of the mask that difficulty decides.
        mask_warmup: epochs with random masks at the start.
        mask_token: the learnable mask token starts "normal" or "zero".
        epochs: training steps; 0 leaves the encoder untrained.
        learning_rate, weight_decay: of Adam.
        schedule: "cosine" or "constant" after the warm-up.
        lr_warmup: epochs over which the learning rate rises.
        n_models: how many independent models to train; their embeddings stand side by side.
        scale_features: "rows" (one length), "columns" (mean 0, variance 1), "none", or "auto".
        n_neighbors: for a table without edges, how many nearest rows each row is joined to.
        precision: of the fusion block in training: "float32", "bfloat16", or "auto", which is bfloat16 where
            the processor computes in it (docs/performance.md says what that changes). Embeddings are always
            computed in float32.
        feature_storage: "csr", "dense", or "auto" by density.
        random_state: seed; the same seed on the same machine gives the same result, bit for bit on CPU.
        device: "auto", "cpu", "cuda" or any torch device.
        verbose: show a progress bar when standard error is a terminal.

    Attributes:
        encoder_: the trained student, a `JointEncoder` with `n_models` models.
        graph_: the fitted `Graph`.
        embedding_: its embedding, float32 `[nodes, n_models · D]`.
        history_: the training log, a `History`.
        n_features_in_: number of feature columns.
    """

    def __init__(
        self,
        *,
        channels: int = 128,
        hops: int = 2,
        hidden_channels: int | None = None,
        heads: int = 4,
        norm: str = "post",
        fusion: str = "attention",
        output: str = "flatten",
        edge_start: float | str = "normalized",
        self_loops: bool = False,
        normalize: bool = False,
        batch_norm: bool = False,
        undirected: bool = True,
        token_dropout: float = 0.0,
        attention_dropout: float = 0.1,
        objective: str = "teacher",
        teacher_mode: str = "eval",
        momentum: float = 0.9,
        mask: str = "probability",
        mask_ratio: float = 0.7,
        exploit_ratio: float = 0.5,
        mask_warmup: int = 10,
        mask_token: str = "zero",
        epochs: int = 100,
        learning_rate: float = 0.001,
        weight_decay: float = 0.0,
        schedule: str = "cosine",
        lr_warmup: int = 10,
        n_models: int = 1,
        scale_features: str = "auto",
        n_neighbors: int = 10,
        precision: str = "auto",
        feature_storage: str = "auto",
        random_state: int | np.random.RandomState | None = 0,
        device: str = "auto",
        verbose: bool = False,
    ) -> None:
        self.channels = channels
        self.hops = hops
        self.hidden_channels = hidden_channels
        self.heads = heads
        self.norm = norm
        self.fusion = fusion
        self.output = output
        self.edge_start = edge_start
        self.self_loops = self_loops
        self.normalize = normalize
        self.batch_norm = batch_norm
        self.undirected = undirected
        self.token_dropout = token_dropout
        self.attention_dropout = attention_dropout
        self.objective = objective
        self.teacher_mode = teacher_mode
        self.momentum = momentum
        self.mask = mask
        self.mask_ratio = mask_ratio
        self.exploit_ratio = exploit_ratio
        self.mask_warmup = mask_warmup
        self.mask_token = mask_token
        self.epochs = epochs
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.schedule = schedule
        self.lr_warmup = lr_warmup
        self.n_models = n_models
        self.scale_features = scale_features
        self.n_neighbors = n_neighbors
        self.precision = precision
        self.feature_storage = feature_storage
        self.random_state = random_state
        self.device = device
        self.verbose = verbose

    @classmethod
    def from_preset(cls, name: str, **overrides: Any) -> Self:
        """Return an estimator with named settings; any of them can be overridden."""
        if name not in PRESETS:
            raise InputError(f"there is no preset {name!r}; the presets are {', '.join(PRESETS)}")
        return cls(**{**PRESETS[name], **overrides})

    def fit(self, X: Any, y: Any = None, *, edge_index: Any = None) -> Self:  # noqa: N803
        """Learn from a graph; labels, if there are any, are never looked at.

        Args:
            X: a PyG `Data`, a networkx graph, a square scipy sparse adjacency, a `Graph`; or features (dense
                or scipy sparse) with `edge_index`; or a table alone, which gets a nearest-neighbour graph.
            y: ignored.
            edge_index: `[2, edges]` or a scipy sparse adjacency, when X holds features.
        """
        check_arguments(self.get_params())
        self.graph_ = self._read(X, edge_index)
        self.n_features_in_ = self.graph_.num_features
        self.is_table_ = self.graph_.provenance.source == "table"
        self.scaler_ = fit_scaler(self.graph_.features, self.scale_features)
        self.support_ = self._support(self.graph_)
        self.seeds_ = derive_seeds(self.random_state, self.n_models)
        given = {field.name: getattr(self, field.name) for field in fields(Training)}
        self.encoder_, self.history_ = train_models(
            self._encoder,
            self._features(self.graph_.features, pick_device(self.device)),
            self.support_.to(pick_device(self.device)),
            self.seeds_,
            Training(**given),
            show=self.verbose,
        )
        self._warn_of_collapse()
        self.embedding_ = self._encode(self.scaler_(self.graph_.features), self.support_)
        return self

    def transform(self, X: Any, *, edge_index: Any = None) -> npt.NDArray[np.float32]:  # noqa: N803
        """Return one embedding per node, `[nodes, n_models · D]`.

        The fitted graph gets its fitted embedding. In a new graph with the same feature columns, an edge that
        was fitted keeps its learned weight and every other edge takes its start value. Nodes are the same
        when their ids are, or, where the user gave no ids, when position and features are. A new row of a
        table hears its nearest fitted rows.
        """
        check_is_fitted(self)
        if self.is_table_ and edge_index is None and not _is_graph(X):
            return self._transform_table(X)
        graph = self._read(X, edge_index)
        self._check_columns(graph.num_features)
        if graph.provenance.sha256 == self.graph_.provenance.sha256:
            return self.embedding_.copy()
        support = self._support(graph)
        same = match_nodes(self.graph_, graph)
        position, found = find_entries(self.support_.pattern, support.pattern, same)
        learned = torch.sigmoid(self.encoder_.edges.logit.detach().cpu())[:, position]
        weights = torch.where(found, learned, support.start) * support.factor
        return self._encode(self.scaler_(graph.features), support, weights)

    def fit_transform(self, X: Any, y: Any = None, *, edge_index: Any = None) -> Any:  # noqa: N803
        """Fit, and return the embedding of the fitted graph."""
        return self.fit(X, y, edge_index=edge_index).embedding_.copy()

    def attention(self) -> npt.NDArray[np.float32]:
        """Return how much each token of each fitted node listens to each token.

        `[n_models, nodes, tokens, tokens]`, averaged over heads; the tokens are linear, MLP, hop 1, hop 2, ….
        """
        check_is_fitted(self)
        device = pick_device(self.device)
        encoder = self.encoder_.to(device)
        with torch.no_grad():
            features = self._features(self.graph_.features, device)
            weights = encoder.attention(encoder.tokens(encoder.project(features), self.support_.to(device)))
        if weights is None:
            raise InputError('fusion="mlp" has no attention to show')
        listened: npt.NDArray[np.float32] = weights.mean(dim=4).cpu().numpy()
        return listened

    def save(self, folder: str | Path) -> None:
        """Write the fitted model as safetensors and JSON; a kill leaves the old model or the new one."""
        check_is_fitted(self)
        storage.save_model(Path(folder), self._state())

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Read what `save` wrote; nothing in the folder is executed."""
        state = storage.load_model(Path(folder))
        model = cls(**state.params)
        model.graph_, model.history_, model.seeds_ = state.graph, state.history, state.seeds
        model.n_features_in_ = state.graph.num_features
        model.is_table_ = state.graph.provenance.source == "table"
        model.scaler_ = FeatureScaler(state.scaling, state.tensors.get("mean"), state.tensors.get("scale"))
        model.support_ = model._support(state.graph)
        model.encoder_ = model._encoder(model.n_models)
        model.encoder_.fuse_in_bfloat16 = False
        storage.restore(model.encoder_, state.tensors)
        model.encoder_.eval()
        model.embedding_ = model._encode(model.scaler_(state.graph.features), model.support_)
        return model

    @property
    def _n_features_out(self) -> int:
        return int(self.embedding_.shape[1])

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.transformer_tags.preserves_dtype = []
        return tags

    def _state(self) -> storage.ModelState:
        tensors = {f"encoder.{name}": value for name, value in self.encoder_.state_dict().items()}
        if self.scaler_.mean is not None and self.scaler_.scale is not None:
            tensors |= {"mean": self.scaler_.mean, "scale": self.scaler_.scale}
        params = self.get_params()
        if not isinstance(params["random_state"], numbers.Integral):
            params["random_state"] = None
        return storage.ModelState(params, tensors, self.graph_, self.history_, self.seeds_, self.scaler_.kind)

    def _read(self, X: Any, edge_index: Any) -> Graph:  # noqa: N803
        if edge_index is not None or _is_graph(X):
            return as_graph(X, edge_index)
        table = validate_data(self, X, accept_sparse="csr", dtype=np.float32)
        graph = as_graph(table, np.empty((2, 0), dtype=np.int64))
        scaled = fit_scaler(graph.features, self.scale_features)(graph.features)
        return nearest_neighbour_graph(table, scaled, self.n_neighbors)

    def _check_columns(self, columns: int) -> None:
        if columns != self.n_features_in_:
            raise GraphError(
                f"X has {columns} features, but H3GNN is expecting {self.n_features_in_} features as input"
            )

    def _support(self, graph: Graph) -> Support:
        return build_support(
            graph.edge_index,
            graph.num_nodes,
            edge_weight=graph.edge_weight,
            undirected=self.undirected,
            self_loops=self.self_loops,
            start=self.edge_start,
            normalize=self.normalize,
        )

    def _encoder(self, models: int) -> JointEncoder:
        return JointEncoder(
            self.graph_.num_features,
            self.channels,
            self.support_.pattern.entries,
            hops=self.hops,
            hidden_channels=self.hidden_channels,
            heads=self.heads,
            norm=self.norm,
            fusion=self.fusion,
            output=self.output,
            batch_norm=self.batch_norm,
            token_dropout=self.token_dropout,
            attention_dropout=self.attention_dropout,
            mask_token=self.mask_token,
            fuse_in_bfloat16=use_bfloat16(self.precision, pick_device(self.device)),
            side_by_side=pick_device(self.device).type == "cuda",
            models=models,
        )

    def _features(self, features: Tensor, device: torch.device) -> FeatureMatrix:
        return FeatureMatrix(self.scaler_(features).to(device), storage=self.feature_storage)

    def _warn_of_collapse(self) -> None:
        for model, epoch in collapse_epochs(self.history_).items():
            at, ranks = self.history_.measured("effective_rank")
            rank = ranks[list(at).index(epoch), model]
            warnings.warn(
                f"model {model}: the representation collapsed: at epoch {epoch} its effective rank fell to "
                f"{rank:.1f} from {ranks[0, model]:.1f}; try fewer epochs, a smaller learning rate or "
                "a larger momentum",
                CollapseWarning,
                stacklevel=4,
            )

    @torch.no_grad()
    def _encode(
        self, features: Tensor, support: Support, edge_weights: Tensor | None = None
    ) -> npt.NDArray[np.float32]:
        """Return the students' embeddings side by side, `[nodes, models · D]`."""
        device = pick_device(self.device)
        encoder = self.encoder_.to(device).eval()
        weights = None if edge_weights is None else edge_weights.to(device)
        matrix = FeatureMatrix(features.to(device), storage=self.feature_storage)
        tokens = encoder.tokens(encoder.project(matrix), support.to(device), edge_weights=weights)
        pieces = [encoder.fuse(piece) for piece in torch.split(tokens, 4096, dim=1)]
        joined = torch.cat(pieces, dim=1).transpose(0, 1).flatten(1)
        embedding: npt.NDArray[np.float32] = joined.contiguous().cpu().numpy()
        return embedding

    def _transform_table(self, X: Any) -> npt.NDArray[np.float32]:  # noqa: N803
        table = validate_data(self, X, accept_sparse="csr", dtype=np.float32, reset=False)
        rows = as_graph(table, np.empty((2, 0), dtype=np.int64)).features
        known = match_rows(self.graph_.features, rows)
        embedding: npt.NDArray[np.float32] = self.embedding_[np.maximum(known, 0)]
        new = np.flatnonzero(known < 0)
        if new.size:
            embedding[new] = self._attach(self.scaler_(rows).to_dense()[new])
        return embedding

    def _attach(self, rows: Tensor) -> npt.NDArray[np.float32]:
        """Return the embeddings of new, scaled rows that hear their nearest fitted rows."""
        fitted = self.scaler_(self.graph_.features).to_dense()
        neighbours = torch.from_numpy(find_nearest(fitted, rows, self.n_neighbors))
        support = attach_nodes(
            self.support_,
            neighbours,
            self_loops=self.self_loops,
            start=self.edge_start,
            normalize=self.normalize,
        )
        nodes = torch.arange(support.pattern.nodes)
        same = torch.where(nodes < fitted.shape[0], nodes, -1)
        position, found = find_entries(self.support_.pattern, support.pattern, same)
        learned = torch.sigmoid(self.encoder_.edges.logit.detach().cpu())[:, position]
        weights = torch.where(found, learned, support.start) * support.factor
        return self._encode(torch.cat([fitted, rows]), support, weights)[fitted.shape[0] :]


def derive_seeds(random_state: int | np.random.RandomState | None, models: int) -> list[int]:
    """Return one seed per model; model i of a larger request has the same seed as in a smaller one."""
    seed = random_state
    if not isinstance(seed, numbers.Integral):
        seed = check_random_state(random_state).randint(2**31)
    streams = np.random.SeedSequence(int(seed)).spawn(models)
    return [int(stream.generate_state(1)[0]) for stream in streams]


def _is_graph(X: Any) -> bool:  # noqa: N803
    """Tell a graph object (or a square sparse adjacency) from a table of features."""
    import scipy.sparse as sp

    if isinstance(X, Graph) or type(X).__module__.split(".")[0] in ("torch_geometric", "networkx"):
        return True
    if all(hasattr(X, name) for name in ("edges", "num_nodes", "ndata")):
        return True
    return bool(sp.issparse(X)) and X.shape[0] == X.shape[1]
