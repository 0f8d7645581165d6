"""H3GNN: the method as a scikit-learn transformer."""

from __future__ import annotations

import numbers
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin, clone
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted

from h3gnn.answers.anomalies import find_anomalies
from h3gnn.answers.extend import Extension, add_nodes
from h3gnn.answers.links import Links, find_links
from h3gnn.answers.similarity import find_nodes, similar_nodes
from h3gnn.encoder.encode import Sharing
from h3gnn.encoder.support import NewEdges
from h3gnn.encoder.tokens import token_names
from h3gnn.errors import InputError, check_whole
from h3gnn.graphs.convert import as_graph, check_target, input_kind, is_graph, one_of
from h3gnn.graphs.graph import Graph, GraphLike
from h3gnn.graphs.ids import match_rows
from h3gnn.graphs.scaling import FeatureScaler
from h3gnn.graphs.structural import check_same_features
from h3gnn.inference import CHUNK, FittedEncoder
from h3gnn.ondisk.mapped import MappedGraph
from h3gnn.preprocessing import (
    NO_EDGES,
    PreparedGraph,
    Preprocessing,
    TrainingOrder,
    align_columns,
    as_output,
    check_same_rows,
    check_training,
    choose_smoothing,
    fingerprint,
    fit_blocks,
    path_counts,
    read_input,
    read_rows,
    set_feature_names,
    snapshot_read_out,
    stack_builder,
)
from h3gnn.resources import read_only
from h3gnn.settings import (
    BEFORE,
    EncoderConfig,
    MaskingConfig,
    SettingsMixin,
    TargetConfig,
    as_plain,
    check_arguments,
    flatten,
    kept_for,
    original,
    parse_memory,
    setting_name,
    with_former_names,
)
from h3gnn.storage import models as storage
from h3gnn.storage.checkpoint_file import Checkpoints, clear
from h3gnn.storage.runs import open_embedding, store_embedding
from h3gnn.tables.plan import check_as_is, check_same_plan
from h3gnn.training.distributed import process_group, shared_files
from h3gnn.training.history import History, UnfinishedWarning, warn_of_collapse
from h3gnn.training.loop import AfterEpochOf, Snapshots
from h3gnn.training.models import Shape, Training, derive_seeds, plan_memory, train_models
from h3gnn.training.objectives import assign_objectives
from h3gnn.training.resources import cost_of, peak_megabytes, pick_device
from h3gnn.tuned import preset

Embedding = npt.NDArray[np.float32]


class H3GNN(SettingsMixin, ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Node embeddings without labels, for graphs that mix homophily and heterophily.

    A student encoder sees a masked graph and predicts the embedding that its teacher, a moving average of
    itself, computes from the whole graph, or the hidden edges. By default, models with different objectives
    are trained and their embeddings concatenated (docs/method.md). `H3GNN.from_preset("paper")` follows the
    paper's equations. Former names of arguments still work, with a `FutureWarning`.

    Args:
        channels: width C of a token.
        hops: K, one weighted-GCN token for each hop 1…K; of a graph with several relations between its nodes,
            for each path of relations up to this length.
        max_paths: maximum number of these paths.
        objective: "teacher" (the paper's), "decorrelation", "neighbours", "edges", "features" or
            "masked-features"; or a list, which is assigned to the models in turn.
        n_models: number of models to train; their embeddings are concatenated.
        epochs: training steps; 0 leaves the encoder untrained.
        learning_rate, weight_decay: of Adam.
        smoothing: strength of smoothing: 0 leaves embeddings unchanged; towards 1 each becomes the mean over
            ever longer walks from its node (for homophilous graphs); below 0 it is contrasted with its
            neighbours (for heterophilous graphs); "auto" compares the features of neighbours.
        dimensions: number of principal components to reduce the embedding to, for files and vector stores;
            None keeps all columns.
        scale_features: "rows" (one length), "columns" (mean 0, variance 1), "none", or "auto".
        n_neighbors: nearest neighbours that each row of a table without edges is connected to.
        undirected: let messages flow both ways along each edge.
        self_loops: include each node in its own neighbourhood.
        encoder: an `EncoderConfig`, or None for the default. `set_params(encoder__heads=2)` sets one field.
        masking: a `MaskingConfig`, or None.
        target: a `TargetConfig`, or None.
        batch_size: nodes per mini-batch, with sampled neighbours; None trains on the full graph.
        num_neighbors: sampled neighbours per node, one number or one per hop, -1 for all; None: 10, then 5.
        batches: "neighbours", or "clusters" for METIS clusters (needs `pymetis`).
        memory: a budget such as "8GB", which limits how many nodes are processed at a time (docs/scale.md).
        random_state: seed; the same seed gives the same result, bit for bit on CPU (docs/determinism.md).
        device: "auto", "cpu", "cuda", or one of several: "cuda:1".
        verbose: show a progress bar if standard error is a terminal.

    Attributes:
        encoder_: the trained students, an `EncoderStack` of `n_models` models.
        members_: the objective of each model, in the order of the embedding's columns.
        smoothing_: the strength of smoothing, as set or as chosen.
        graph_: the fitted `Graph`, or `MappedGraph` of a graph on disk.
        embedding_: its embedding: the columns of each model, standardized before smoothing, then blocks of
            input features and of link columns (docs/method.md), `[nodes, n_models · D + …]`; or `dimensions`
            components.
        history_: the training log, a `History`.
        cost_: seconds and peak megabytes of the fit, and each model's share of them.
        n_features_in_: number of feature columns.
        feature_names_in_: their names, if they have any.
    """

    @with_former_names
    def __init__(
        self,
        *,
        channels: int = 128,
        hops: int = 2,
        max_paths: int = 8,
        objective: str | Sequence[str] = ("teacher", "decorrelation", "neighbours", "edges"),
        n_models: int = 4,
        epochs: int = 30,
        learning_rate: float = 0.004,
        weight_decay: float = 0.0,
        smoothing: float | str = "auto",
        dimensions: int | None = None,
        scale_features: str = "auto",
        n_neighbors: int = 10,
        undirected: bool = True,
        self_loops: bool = False,
        encoder: EncoderConfig | None = None,
        masking: MaskingConfig | None = None,
        target: TargetConfig | None = None,
        batch_size: int | None = None,
        num_neighbors: int | Sequence[int] | None = None,
        batches: str = "neighbours",
        memory: int | str | None = None,
        random_state: int | np.random.RandomState | None = 0,
        device: str = "auto",
        verbose: bool = False,
    ) -> None:
        self.channels = channels
        self.hops = hops
        self.max_paths = max_paths
        self.objective = objective
        self.n_models = n_models
        self.epochs = epochs
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.smoothing = smoothing
        self.dimensions = dimensions
        self.scale_features = scale_features
        self.n_neighbors = n_neighbors
        self.undirected = undirected
        self.self_loops = self_loops
        self.encoder = encoder
        self.masking = masking
        self.target = target
        self.batch_size = batch_size
        self.num_neighbors = num_neighbors
        self.batches = batches
        self.memory = memory
        self.random_state = random_state
        self.device = device
        self.verbose = verbose

    @classmethod
    def from_preset(cls, name: str, **overrides: Any) -> Self:
        """Return an estimator with named settings; any of them can be overridden.

        Args:
            name: "paper" or its variants "released" and "later", "single", "quick", a benchmark such as
                "texas", or a file of `h3gnn tune`.
            overrides: arguments or single settings of a group, such as `epochs=100, heads=2`.
        """
        given = {setting_name(key) or key: value for key, value in overrides.items()}
        return cls.from_settings({**preset(name), **flatten(given)})

    def fit(
        self,
        X: Any,  # noqa: N803
        y: Any = None,
        *,
        edge_index: Any = None,
        edges: Any = None,
        checkpoints: Checkpoints | None = None,
        snapshots: Snapshots | None = None,
        after_epoch_of: AfterEpochOf | None = None,
    ) -> Self:
        """Learn from a graph; labels, if there are any, are not used.

        Ctrl-C lets the epoch end and raises `TrainingStopped`, a `KeyboardInterrupt`; the model then has the
        state of that epoch. A second Ctrl-C stops at once. A fit that fails changes nothing.

        Args:
            X: a PyG `Data`, a networkx graph, a square scipy sparse adjacency, a `Graph` or `MappedGraph`; or
                features (dense, scipy sparse, or a data frame) with `edges`; or a table alone, which becomes
                a nearest-neighbour graph.
            y: ignored; rejected if it looks like edges.
            edge_index: if X holds features, `[2, edges]`, rows of source and target, or a scipy sparse
                adjacency (see `as_graph`).
            edges: the same, or a data frame of edges by id.
            checkpoints: where and how often to store the state of the training. A run with the same settings
                on the same graph is resumed; when the fit ends, the checkpoints are removed.
            snapshots: epochs after which a function gets the embedding; not in batches or with checkpoints.
            after_epoch_of: maps the first model of a group trained together to a function called after each
                epoch with the epoch and the records so far.
        """
        settings = self.get_settings()
        check_arguments(settings)
        check_target(X, y)
        on_disk = input_kind(X) == "mapped"
        check_training(self.batch_size, self.random_state, checkpoints, snapshots, on_disk=on_disk)
        started, device, memory = time.perf_counter(), pick_device(self.device), self._memory()
        edge_index = one_of(edge_index, edges)
        graph: GraphLike = X if on_disk else read_input(clone(self), X, edge_index)
        Shape.of(settings).check_memory(graph.num_features, 1)
        seeds = derive_seeds(self.random_state, self.n_models)
        with process_group(device) as ranks:
            prepared = Preprocessing.of(settings).fit(graph)
            order = TrainingOrder.of(graph, settings)
            ordered = prepared if order is None else Preprocessing.of(settings).fit(order.graph)
            smoothing = choose_smoothing(settings, ordered)
            blocks = fit_blocks(settings, ordered, order, device)
            if snapshots is not None:
                read_out = snapshot_read_out(prepared, settings, smoothing, device, order, blocks)
                snapshots = snapshots.transformed(read_out, with_tokens=settings["concat_tokens"])
            size = graph.num_nodes, prepared.support.entries, graph.num_features
            at_once, chunk = plan_memory(settings, *size, device, memory, path_counts(graph))
            encoder, history = train_models(
                stack_builder(settings, ordered, device),
                ordered.source(settings, device, ranks),
                seeds,
                Training.of(settings),
                at_once=at_once,
                chunk=chunk,
                show=self.verbose,
                checkpoints=checkpoints,
                fingerprint=fingerprint(original(kept_for("run", settings)), seeds, graph, device),
                snapshots=snapshots,
                after_epoch_of=after_epoch_of,
                ranks=ranks,
            )
            if order is not None:
                order.restore(encoder, history, ordered.support, prepared.support)
            fitted = FittedEncoder(encoder, prepared, settings, smoothing, device, memory, blocks=blocks)
            if self.dimensions is not None:
                fitted.fit_reduction(self.dimensions)
            embedding = fitted.embed_fitted() if graph.in_memory else None
        cost = cost_of(time.perf_counter() - started, peak_megabytes(device), int(self.n_models))
        self._set_fitted(fitted, embedding, history, seeds, cost)
        warn_of_collapse(history, stacklevel=3)
        stopped, history.stopped = history.stopped, None
        if stopped is not None:
            raise stopped
        if checkpoints is not None and not checkpoints.keep_finished and ranks.rank == 0:
            clear(Path(checkpoints.folder))
        return self

    def _set_fitted(
        self,
        fitted: FittedEncoder,
        embedding: Embedding | None,
        history: History,
        seeds: list[int],
        cost: dict[str, Any],
    ) -> None:
        """Set all learned attributes after everything that can fail."""
        prepared, graph = fitted.prepared, fitted.graph
        self.inference_, self.encoder_, self.smoothing_ = fitted, fitted.encoder, fitted.smoothing
        self.graph_: Any = graph  # a Graph, or a MappedGraph on disk
        self.scaler_, self.support_ = prepared.scaler, prepared.support
        self.members_ = assign_objectives(self.objective, self.n_models)
        self.history_, self.seeds_, self.cost_ = history, seeds, cost
        set_feature_names(self, graph)
        self.__dict__.pop("embedding_", None)
        if embedding is not None:
            self.embedding_ = read_only(embedding)

    def embedding_chunks(self, graph: MappedGraph | None = None) -> Iterator[Embedding]:
        """Yield the embedding in chunks `[some, n_models · D]`; a graph on disk has no `embedding_`.

        Args:
            graph: another graph on disk with the columns of the fitted one, which is the default.
        """
        fitted = self._fitted()
        own = graph is None or graph.provenance.sha256 == fitted.graph.provenance.sha256
        rows = self._rows() if own else None
        if rows is None:
            yield from fitted.in_chunks(graph).chunks()
            return
        nodes = fitted.sharing.own(len(rows), CHUNK)
        for first in nodes[::CHUNK]:
            yield rows[first : min(first + CHUNK, nodes.stop)].astype(np.float32, copy=False)

    @contextmanager
    def embedding_rows(self) -> Iterator[Embedding]:
        """Yield the fitted graph's embedding as one array, in a temporary file if memory is too small."""
        fitted, rows = self._fitted(), self._rows()
        if rows is not None:
            yield rows.astype(np.float32, copy=False)
            return
        with fitted.in_chunks().rows() as computed:
            yield computed

    def _rows(self) -> npt.NDArray[Any] | None:
        """Return the fitted graph's embedding, in memory or as stored, if it is there."""
        return self.embedding_ if self.graph_.in_memory else self.inference_.rows

    @contextmanager
    def sharing(self) -> Iterator[Sharing]:
        """Let the processes that torchrun started divide the embedding of a graph on disk.

        All of them enter the block and call the same methods there. `embedding_chunks` then yields the rows
        of some of the nodes, in the order of the processes, and `embedding_rows` all of them.
        """
        fitted = self._fitted()
        folder = self.graph_.folder if isinstance(self.graph_, MappedGraph) else Path()
        with shared_files(fitted.device, folder) as fitted.sharing:
            try:
                yield fitted.sharing
            finally:
                fitted.forget_sharing()

    def transform(self, X: Any, *, edge_index: Any = None, edges: Any = None) -> Any:  # noqa: N803
        """Return one embedding per node, `[nodes, n_models · D]`.

        The fitted graph gets its fitted embedding. In another graph, feature columns are matched by name;
        nodes are matched by id or, without ids, by position and features; edges of the fitted graph keep
        their learned weights. A new row of a table receives messages from its nearest fitted rows. Rows
        without edges must be those of the fitted graph, unless the model was fitted without edges.
        """
        fitted = self._fitted()
        if input_kind(X) == "mapped":
            message = "a graph on disk is embedded in chunks: use embedding_chunks(graph)"
            raise InputError(message, code="graph-on-disk")
        edge_index = one_of(edge_index, edges)
        if edge_index is None and not is_graph(X):
            self._check_in_memory()
            return self._transform_table(X)
        links = False if self.graph_.link_columns is None else self.graph_.link_columns.plan
        graph = as_graph(X, edge_index, plan=self.graph_.plan, link_columns=links)
        fitted.check_links(graph)
        check_same_features(self.graph_, graph)
        if not fitted.graph.in_memory:
            check_as_is(graph.plan)
        check_same_plan(self.graph_.plan, graph.plan)
        graph = graph if graph.provenance.structural else align_columns(self.graph_, graph)
        same = graph.provenance.sha256 == self.graph_.provenance.sha256
        return as_output(self, self.embedding_.copy() if same else fitted.embed(graph), graph, X)

    def _transform_table(self, X: Any) -> Embedding:  # noqa: N803
        graph = read_rows(self, X, self.graph_)
        if not self.is_table_:
            check_same_rows(self.graph_, graph)
            return self.embedding_.copy()
        known = match_rows(self.graph_.features, graph.features)
        embedding: Embedding = self.embedding_[np.maximum(known, 0)]
        new = np.flatnonzero(known < 0)
        if new.size:
            rows, fitted = self.scaler_(graph.features).to_dense()[new], self._fitted()
            embedding[new] = fitted.embed_new(rows, fitted.nearest_edges(rows), self.embedding_)
        return embedding

    def fit_transform(self, X: Any, y: Any = None, **options: Any) -> Any:  # noqa: N803
        """Fit, and return the embedding of the fitted graph; takes the arguments of `fit`."""
        self.fit(X, y, **options)
        return as_output(self, self.embedding_.copy(), self.graph_, X)

    def extend(self, X: Any, edges: Any = None, *, refresh: bool = False) -> Extension:  # noqa: N803
        """Embed nodes that join the fitted graph; the model and the fitted nodes' embeddings do not change.

        Args:
            X: features of the new nodes only: a DataFrame indexed by node id; or an array, whose rows get
                positions after the fitted nodes.
            edges: DataFrame of source, target and optionally weight, by ids; or `[2, edges]` positions. Edges
                from several fitted files are a dict, `{"calls": table}`. They are scaled and merged as those
                of the fit. A model of a table needs none: new rows are connected to their nearest neighbours.
            refresh: embed all nodes again in the extended graph, with edges between fitted nodes.
        """
        self._check_in_memory()
        if self.graph_.path_columns is not None or self.graph_.relation_names:
            message = "new rows of several linked tables: give all rows to transform (type_view(…, fitted=…))"
            raise InputError(message, code="extend-relations")
        fitted = self._fitted()
        if self.smoothing_ and fitted.settings["smoother"] == "powers" and not refresh:
            message = 'smoother="powers" needs the whole graph; call extend(..., refresh=True)'
            raise InputError(message, code="extend-needs-refresh")
        table = X if input_kind(X) == "graph" else as_graph(X, NO_EDGES, plan=self.graph_.plan)
        check_same_plan(self.graph_.plan, table.plan)
        table = align_columns(self.graph_, table)
        if edges is None and self.is_table_:
            edges = fitted.nearest_edges(self.scaler_(table.features).to_dense()).edge_index.numpy()
        graph, edge_index, edge_weight, repairs = add_nodes(self.graph_, table, edges, between_known=refresh)
        known, new = self.graph_.num_nodes, table.num_nodes
        if refresh:
            return Extension(self.transform(graph), graph.node_ids, graph, True, new, repairs)
        weight = self.graph_.edge_weight
        loop = 1.0 if weight is None else float(weight[self.graph_.edge_index.diff(dim=0)[0] != 0].mean())
        rows = self.scaler_(graph.feature_reader(FeatureScaler("none"))(torch.arange(known, known + new)))
        joining = NewEdges(edge_index, edge_weight, known, new, loop)
        links = None if graph.link_columns is None else graph.link_columns.values
        embedding = fitted.embed_new(rows, joining, self.embedding_, links)
        return Extension(embedding, graph.node_ids[known:], graph, False, new, repairs)

    def similar(self, nodes: Any, k: int = 10, *, among: Any = None, search: str = "auto") -> pd.DataFrame:
        """Return the nodes most similar to the given ones, with explanations; see `similar_nodes`.

        Args:
            nodes: an id, or several.
            k: number of results for each.
            among: ids of the nodes to choose from; all by default.
            search: "exact", "approximate" (by an index of FAISS), or "auto": exact without a large index.
        """
        check_whole("k", k, 1)
        single = isinstance(nodes, str) or np.ndim(nodes) == 0
        queries = find_nodes(self.graph_, [nodes] if single else nodes)
        has_attention = self.graph_.in_memory and self._fitted().settings["fusion"] != "mlp"
        stored = self._rows()  # of a graph on disk read in parts, in the precision in which it is stored
        with self.embedding_rows() if stored is None else nullcontext(stored) as rows:
            return similar_nodes(
                self.graph_,
                rows,
                queries,
                k,
                feature_names=getattr(self, "feature_names_in_", None),
                tokens=self._token_columns(),
                attention=(lambda nodes: self.attention(nodes).mean(axis=(0, 2))) if has_attention else None,
                candidates=None if among is None else find_nodes(self.graph_, among),
                index=None if among is not None else self.inference_.index_for(search, rows),
            )

    def anomalies(self, *, edges: bool = True) -> pd.DataFrame:
        """Return all nodes by anomaly score, the highest first; see `find_anomalies`."""
        self._check_in_memory()
        values = None if (found := self.history_.difficulty) is None else found.float().numpy()
        return find_anomalies(self.graph_, self.by_model(), self.members_, values, edges=edges)

    def links(self, nodes: Any = None, *, top: int = 100, check: bool = True) -> Links:
        """Return the most likely pairs of nodes without an edge; see `find_links`.

        Args:
            nodes: ids, one of which is in every pair; all by default.
            top: number of pairs.
            check: hide some edges and fit again without them, to train and score a classifier of links;
                otherwise pairs are ranked by similarity alone.
        """
        self._check_in_memory()
        check_whole("top", top, 1)

        def refit(graph: Graph) -> Embedding:
            fitted: H3GNN = clone(self).fit(graph)
            return fitted.by_model()

        queries = None if nodes is None else find_nodes(self.graph_, nodes)
        embedding, seed, again = self.by_model(), self.seeds_[0], refit if check else None
        return find_links(self.graph_, embedding, again, queries=queries, top=top, seed=seed)

    def attention(self, nodes: Any = None) -> Embedding:
        """Return attention between tokens, averaged over heads, `[n_models, nodes, tokens, tokens]`.

        The tokens are linear, MLP, hop 1, hop 2, ….

        Args:
            nodes: positions of nodes; all by default.
        """
        self._check_in_memory()
        return self._fitted().attention(None if nodes is None else np.asarray(nodes, dtype=np.int64))

    def save(self, folder: str | Path, *, embedding: str | None = None) -> None:
        """Write the fitted model as safetensors and JSON; if interrupted, the old model stays.

        `embedding` says how to store the embedding beside it, see `store_embedding`, or is "later".
        """
        check_is_fitted(self, "encoder_")
        tensors = {f"encoder.{name}": value for name, value in self.encoder_.state_dict().items()}
        tensors |= self.inference_.state()
        if self.scaler_.mean is not None and self.scaler_.scale is not None:
            tensors |= {"mean": self.scaler_.mean, "scale": self.scaler_.scale}
        if self.history_.difficulty is not None:
            tensors["difficulty"] = self.history_.difficulty
        params = {name: as_plain(value) for name, value in self.get_settings().items()}
        if not isinstance(params["random_state"], numbers.Integral):
            params["random_state"] = None
        learned = self.history_.as_dict(), self.seeds_, self.scaler_.kind, self.cost_, self.smoothing_
        storage.save_model(Path(folder), storage.ModelState(params, tensors, self.graph_, *learned))
        if embedding != "later":  # the first command that needs it stores it
            self.store_embedding(folder, embedding)

    def store_embedding(self, folder: str | Path, dtype: str | None = None) -> None:
        """Write the embedding beside the saved model, where `load` finds it instead of computing it.

        `dtype` is "float32", "float16" (half the size, three digits) or "none"; None is float32, or as it was
        where the model was loaded.
        """
        fitted, stored = self._fitted(), self.inference_.stored
        dtype = dtype or (stored.dtype if stored else "float32")
        if dtype == "float32" and stored and stored.dtype == "float16":  # its rows are rounded
            fitted.stored = None
            if fitted.graph.in_memory:
                self.embedding_ = read_only(fitted.embed_fitted())
        shape = self.graph_.num_nodes, fitted.width
        store_embedding(Path(folder), dtype, shape, self.embedding_chunks(), fitted.learned)
        if dtype == "float32" and not fitted.graph.in_memory:
            fitted.stored = open_embedding(Path(folder), shape)

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Read a model that `save` wrote; nothing in the folder is executed.

        An `UnfinishedWarning` says that a signal ended the training before its last epoch.
        """
        state = storage.load_model(Path(folder))
        model = cls.from_settings({**BEFORE, **state.params})
        settings = model.get_settings()
        with storage.naming_settings(folder):
            check_arguments(settings)
        scaler = FeatureScaler(state.scaling, state.tensors.get("mean"), state.tensors.get("scale"))
        prepared = PreparedGraph(state.graph, scaler, Preprocessing.of(settings).support(state.graph))
        device = pick_device(model.device)
        build = stack_builder(settings, prepared, device, saved=True)
        with torch.device("meta"):
            storage.check_weights(state, build(model.n_models))
        encoder = build(model.n_models)
        encoder.fuse_in_bfloat16 = False
        storage.restore(encoder, state.tensors)
        smoothing = choose_smoothing(settings, prepared) if state.smoothing is None else state.smoothing
        fitted = FittedEncoder(encoder.eval(), prepared, settings, smoothing, device, model._memory())
        fitted.restore(state.tensors)
        fitted.take(open_embedding(Path(folder), (state.graph.num_nodes, fitted.width)))
        embedding = fitted.embed_fitted() if state.graph.in_memory else None
        history = History.from_dict(state.history)
        history.difficulty = state.tensors.get("difficulty")
        model._set_fitted(fitted, embedding, history, state.seeds, state.cost)
        if history.completed < model.epochs:
            done = f"{history.completed:,} of {model.epochs:,} epochs"
            warnings.warn(f"{folder} is unfinished: {done}", UnfinishedWarning, stacklevel=2)
        return model

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.transformer_tags.preserves_dtype = []
        return tags

    @property
    def is_table_(self) -> bool:
        """Whether the model was fitted on a table without edges."""
        return bool(self.graph_.provenance.kind == "table")

    @property
    def _n_features_out(self) -> int:
        return self.inference_.width

    def _fitted(self) -> FittedEncoder:
        """Return the fitted encoder, with device and memory as they are set now."""
        check_is_fitted(self, "inference_")
        if self.graph_.in_memory:
            self.graph_.check_unchanged()
        self.inference_.device, self.inference_.memory = pick_device(self.device), self._memory()
        return self.inference_

    @property
    def token_names(self) -> tuple[str, ...]:
        """Descriptions of a node's tokens, in the order of `attention`."""
        check_is_fitted(self)
        encoder, columns = self.encoder_, self.graph_.path_columns
        others = encoder.num_tokens - 2 - len(encoder.hop_tokens)
        to_types = () if columns is None else columns.titles[:others]
        return token_names(self.hops, self.graph_.relation_names, encoder.paths, to_types)

    def _check_in_memory(self) -> None:
        check_is_fitted(self)
        if not self.graph_.in_memory:
            raise InputError("the fitted graph is on disk, but must be in memory", code="graph-on-disk")

    def by_model(self) -> Embedding:
        """Return the part of the embedding that each model computes, `[nodes, n_models, D]`."""
        fitted = self._fitted()
        rows = self.embedding_ if fitted.reduction is None else fitted.embed_full().cpu().numpy()
        return rows[:, : fitted.models_width].reshape(len(rows), self.n_models, -1)

    def _token_columns(self) -> dict[str, npt.NDArray[np.int64]]:
        """Return each token's columns of the embedding; nothing if the output is a single token."""
        fitted = self._fitted()
        if fitted.settings["output"] != "flatten" or fitted.reduction is not None:
            return {}
        columns = np.arange(fitted.models_width).reshape(self.n_models, -1, self.channels)
        names = self.token_names
        return {name: columns[:, at :: len(names)].ravel() for at, name in enumerate(names)}

    def _memory(self) -> int | None:
        return None if self.memory is None else parse_memory(self.memory)
