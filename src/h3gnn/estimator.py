"""H3GNN: the method as a scikit-learn transformer."""

from __future__ import annotations

import numbers
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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
from h3gnn.encoder.tokens import token_names
from h3gnn.errors import InputError, check_whole
from h3gnn.graphs.convert import as_graph
from h3gnn.graphs.graph import Graph, GraphLike
from h3gnn.graphs.guards import check_target, input_kind, is_graph
from h3gnn.graphs.ids import match_rows
from h3gnn.graphs.scaling import FeatureScaler
from h3gnn.graphs.structural import check_same_features
from h3gnn.inference import CHUNK, FittedEncoder, NewEdges
from h3gnn.ondisk.mapped import MappedGraph
from h3gnn.preprocessing import (
    NO_EDGES,
    PreparedGraph,
    Preprocessing,
    align_columns,
    as_output,
    check_same_rows,
    choose_smoothing,
    read_input,
    read_rows,
    set_feature_names,
    snapshot_read_out,
    stack_builder,
)
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
from h3gnn.tables.plan import check_as_is, check_same_plan
from h3gnn.training.distributed import is_distributed, process_group
from h3gnn.training.history import History, warn_of_collapse
from h3gnn.training.loop import AfterEpochOf, Snapshots
from h3gnn.training.models import (
    Shape,
    Training,
    derive_seeds,
    plan_memory,
    train_models,
)
from h3gnn.training.objectives import assign_objectives
from h3gnn.training.resources import (
    cost_of,
    peak_megabytes,
    pick_device,
    use_bfloat16,
)
from h3gnn.tuned import preset


class H3GNN(SettingsMixin, ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Node embeddings without labels, for graphs that mix homophily and heterophily.

    A student encoder sees a masked graph and predicts what was hidden: the embedding that its teacher, a
    moving average of itself, computes from the whole graph, or the hidden edges. The default is a committee:
    models with different objectives, whose embeddings are concatenated. See docs/method.md.

    The defaults are for a graph without tuning; `H3GNN.from_preset("paper")` follows the paper's equations.
    Former names of arguments, and settings of a group given without it, still work with a `FutureWarning`.

    Args:
        channels: width C of a token.
        hops: K, one weighted-GCN token for each hop 1…K.
        objective: training objective: "teacher" (the paper's), "decorrelation", "neighbours", "edges",
            "features" or "masked-features"; or a list, which is assigned to the models in turn.
        n_models: number of models to train; their embeddings are concatenated.
        epochs: training steps; 0 leaves the encoder untrained.
        learning_rate, weight_decay: of Adam.
        smoothing: strength s of smoothing: 0 leaves embeddings unchanged; towards 1 each becomes the mean
            over ever longer walks from its node (for homophilous graphs); below 0 it is contrasted with its
            neighbours (for heterophilous graphs); "auto" compares the features of neighbours, never labels,
            and stores its choice in `smoothing_`.
        scale_features: "rows" (one length), "columns" (mean 0, variance 1), "none", or "auto".
        n_neighbors: nearest neighbours that each row of a table without edges is connected to.
        undirected: let messages flow both ways along each edge.
        self_loops: include each node in its own neighbourhood.
        encoder: an `EncoderConfig`; None is the default one. Its fields are set one at a time with
            `set_params(encoder__heads=2)`.
        masking: a `MaskingConfig`, or None.
        target: a `TargetConfig`, or None.
        batch_size: nodes per mini-batch, with sampled neighbours; None trains on the full graph.
        num_neighbors: sampled neighbours per node and hop, one number or one per hop, -1 for all; None is 10,
            then 5.
        batches: "neighbours", or "clusters" for METIS clusters (needs `pymetis`).
        memory: a budget such as "8GB", which limits how many nodes are processed at a time (docs/scale.md).
        random_state: seed; the same seed on the same machine gives the same result, bit for bit on CPU (see
            docs/determinism.md).
        device: "auto", "cpu", "cuda", or one of several: "cuda:1".
        verbose: show a progress bar if standard error is a terminal.

    Attributes:
        encoder_: the trained students, an `EncoderStack` of `n_models` models.
        members_: the objective of each model, in the order of the embedding's columns.
        smoothing_: the strength of smoothing, as set or as chosen.
        graph_: the fitted `Graph`, or `MappedGraph` of a graph on disk.
        embedding_: its embedding, float32 `[nodes, n_models · D]`; with several objectives, each column has
            mean 0 and variance 1 before smoothing.
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
        objective: str | Sequence[str] = ("teacher", "decorrelation", "neighbours", "edges"),
        n_models: int = 8,
        epochs: int = 50,
        learning_rate: float = 0.002,
        weight_decay: float = 0.0,
        smoothing: float | str = "auto",
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
        self.objective = objective
        self.n_models = n_models
        self.epochs = epochs
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.smoothing = smoothing
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
        checkpoints: Checkpoints | None = None,
        snapshots: Snapshots | None = None,
        after_epoch_of: AfterEpochOf | None = None,
    ) -> Self:
        """Learn from a graph; labels, if there are any, are not used.

        Ctrl-C lets the epoch end and raises `TrainingStopped`, a `KeyboardInterrupt`; the model then keeps
        the state reached, with `embedding_` and `history_`. A second Ctrl-C stops at once. A fit that fails
        leaves the state of an earlier one unchanged.

        Args:
            X: a PyG `Data`, a networkx graph, a square scipy sparse adjacency, a `Graph` or `MappedGraph`; or
                features (dense or scipy sparse) with `edge_index`; or a table alone, which becomes a
                nearest-neighbour graph.
            y: ignored, unless it looks like edges: then it is rejected.
            edge_index: if X holds features, `[2, edges]`, rows of source and target, a scipy sparse
                adjacency, or a DataFrame (see `as_graph`).
            checkpoints: where and how often to store the state of the training. If the folder holds a run
                with the same settings on the same graph, the fit resumes it; when it ends, the checkpoints
                are removed.
            snapshots: epochs after which a function receives the models' embedding; not in mini-batches, and
                not together with checkpoints.
            after_epoch_of: returns, for a group of models that starts with a given one, a function called
                after each of its epochs with the epoch and the records so far.
        """
        settings = self.get_settings()
        check_arguments(settings)
        check_target(X, y)
        self._check_fit(X, checkpoints, snapshots)
        started, device = time.perf_counter(), pick_device(self.device)
        graph: GraphLike = X if input_kind(X) == "mapped" else read_input(clone(self), X, edge_index)
        Shape.of(settings).check_memory(graph.num_features, 1)
        seeds = derive_seeds(self.random_state, self.n_models)
        with process_group(device) as ranks:
            prepared = Preprocessing.of(settings).fit(graph)
            smoothing = choose_smoothing(settings, prepared)
            if snapshots is not None:
                read_out = snapshot_read_out(graph, settings, smoothing, device)
                snapshots = snapshots.transformed(read_out, with_tokens=settings["concat_tokens"])
            at_once, chunk = plan_memory(
                settings,
                graph.num_nodes,
                prepared.support.entries,
                graph.num_features,
                device,
                self._memory(),
            )
            encoder, history = train_models(
                stack_builder(settings, prepared, device),
                prepared.source(settings, device, ranks),
                seeds,
                Training.of(settings),
                at_once=at_once,
                chunk=chunk,
                show=self.verbose,
                checkpoints=checkpoints,
                fingerprint=_fingerprint(settings, seeds, graph, device),
                snapshots=snapshots,
                after_epoch_of=after_epoch_of,
                ranks=ranks,
            )
            fitted = FittedEncoder(encoder, prepared, settings, smoothing, device, self._memory())
            embedding = fitted.embed_fitted() if graph.in_memory else None
        cost = cost_of(time.perf_counter() - started, peak_megabytes(device), int(self.n_models))
        self._set_fitted(fitted, embedding, history, seeds, cost)
        warn_of_collapse(history, stacklevel=3)
        stopped, history.stopped = history.stopped, None
        if stopped is not None:  # the model is fitted as far as the training came
            raise stopped
        if checkpoints is not None and not checkpoints.keep_finished:
            clear(Path(checkpoints.folder))
        return self

    def _set_fitted(
        self,
        fitted: FittedEncoder,
        embedding: npt.NDArray[np.float32] | None,
        history: History,
        seeds: list[int],
        cost: dict[str, Any],
    ) -> None:
        """Set all learned attributes at once, so that a failed fit changes none of them."""
        prepared, graph = fitted.prepared, fitted.graph
        self.inference_, self.encoder_, self.smoothing_ = fitted, fitted.encoder, fitted.smoothing
        self.graph_: Any = graph  # a Graph, or a MappedGraph on disk
        self.scaler_, self.support_ = prepared.scaler, prepared.support
        self.members_ = assign_objectives(self.objective, self.n_models)
        self.history_, self.seeds_, self.cost_ = history, seeds, cost
        set_feature_names(self, graph)
        self.__dict__.pop("embedding_", None)
        if embedding is not None:
            self.embedding_ = embedding

    def _check_fit(self, X: Any, checkpoints: Checkpoints | None, snapshots: Snapshots | None) -> None:  # noqa: N803
        """Reject invalid combinations of arguments before anything is read."""
        if checkpoints is not None:
            checkpoints.check()
            if not isinstance(self.random_state, numbers.Integral):
                raise InputError("checkpoints need an integer random_state", code="checkpoints-need-seed")
        if self.batch_size is not None or input_kind(X) == "mapped":
            if snapshots is not None:
                raise InputError(
                    "snapshots need full-graph training: omit batch_size", code="snapshots-in-batches"
                )
            if self.batch_size is None:
                raise InputError(
                    "a graph on disk is trained in mini-batches: give batch_size (--batch-size 1024)",
                    code="batch-size-missing",
                )
            return
        if checkpoints is not None and snapshots is not None:
            raise InputError(
                "a resumed run has no earlier snapshots: give checkpoints or snapshots, not both",
                code="snapshots-with-checkpoints",
            )
        if is_distributed():
            raise InputError(
                "several processes share mini-batches: give batch_size (--batch-size 1024)",
                code="batch-size-missing",
            )

    def embedding_chunks(self, graph: MappedGraph | None = None) -> Iterator[npt.NDArray[np.float32]]:
        """Yield an embedding some nodes at a time, `[some, n_models · D]`, in bounded memory.

        A graph on disk has no `embedding_`; this computes its embedding.

        Args:
            graph: another graph on disk, with the columns of the fitted one, which is the default. As in
                `transform`, edges of the fitted graph keep their learned weights.
        """
        fitted = self._fitted()
        if graph is None and fitted.graph.in_memory:
            yield from np.array_split(self.embedding_, -(-len(self.embedding_) // CHUNK))
        else:
            yield from fitted.in_chunks(graph).chunks()

    @contextmanager
    def embedding_rows(self) -> Iterator[npt.NDArray[np.float32]]:
        """Give the fitted graph's embedding as one array; beyond half of memory it is a temporary file."""
        fitted = self._fitted()
        if fitted.graph.in_memory:
            yield self.embedding_
            return
        with fitted.in_chunks().rows() as rows:
            yield rows

    def transform(self, X: Any, *, edge_index: Any = None) -> Any:  # noqa: N803
        """Return one embedding per node, `[nodes, n_models · D]`.

        The fitted graph gets its fitted embedding. In a new graph with the same feature columns, an edge of
        the fitted graph keeps its learned weight, and others take their initial value. Nodes are the same if
        their ids are or, without ids, if position and features are. If neither graph has features, the
        structural features of the new one are expressed in terms of the fitted one. A new row of a table
        receives from its nearest fitted rows. Feature columns are matched by name. Rows without edges are
        embedded if they are those of the fitted graph, or if the model was fitted without edges.
        """
        fitted = self._fitted()
        if input_kind(X) == "mapped":
            raise InputError(
                "a graph on disk is embedded in chunks: use embedding_chunks(graph)", code="graph-on-disk"
            )
        if edge_index is None and not is_graph(X):
            self._check_in_memory()
            return self._transform_table(X)
        graph = as_graph(X, edge_index, plan=self.graph_.plan)
        check_same_features(self.graph_, graph)
        if not fitted.graph.in_memory:
            check_as_is(graph.plan)
        check_same_plan(self.graph_.plan, graph.plan)
        graph = graph if graph.provenance.structural else align_columns(self.graph_, graph)
        same = graph.provenance.sha256 == self.graph_.provenance.sha256
        return as_output(self, self.embedding_.copy() if same else fitted.embed(graph), graph, X)

    def _transform_table(self, X: Any) -> npt.NDArray[np.float32]:  # noqa: N803
        graph = read_rows(self, X, self.graph_)
        if not self.is_table_:
            check_same_rows(self.graph_, graph)
            return self.embedding_.copy()
        known = match_rows(self.graph_.features, graph.features)
        embedding: npt.NDArray[np.float32] = self.embedding_[np.maximum(known, 0)]
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
        """Embed nodes that join the fitted graph; only the new rows are computed.

        New nodes receive from fitted ones and from one another; fitted nodes keep their embeddings, as a
        vector store needs. The model itself does not change.

        Args:
            X: features of the new nodes alone: a DataFrame whose index names them; or an array, whose rows
                are positions after the fitted nodes.
            edges: DataFrame of source, target and optionally weight, by ids; or `[2, edges]` positions. A
                model of a table needs none: new rows are connected to their nearest.
            refresh: embed all nodes again in the extended graph; edges between fitted nodes are used, too.
        """
        self._check_in_memory()
        fitted = self._fitted()
        if self.smoothing_ and fitted.settings["smoother"] == "powers" and not refresh:
            raise InputError(
                'smoother="powers" needs the whole graph; call extend(..., refresh=True)',
                code="extend-needs-refresh",
            )
        table = X if input_kind(X) == "graph" else as_graph(X, NO_EDGES, plan=self.graph_.plan)
        check_same_plan(self.graph_.plan, table.plan)
        table = align_columns(self.graph_, table)
        if edges is None and self.is_table_:
            edges = fitted.nearest_edges(self.scaler_(table.features).to_dense()).edge_index.numpy()
        grown = add_nodes(self.graph_, table, edges, between_known=refresh)
        if refresh:
            every = self.transform(grown.graph)
            return Extension(every, grown.graph.node_ids, grown.graph, True, grown.new, grown.notes)
        weight = self.graph_.edge_weight
        loop = 1.0 if weight is None else float(weight[self.graph_.edge_index.diff(dim=0)[0] != 0].mean())
        joining = NewEdges(grown.edge_index, grown.edge_weight, grown.known, grown.new, loop)
        new = torch.arange(grown.known, grown.graph.num_nodes)
        rows = self.scaler_(grown.graph.feature_reader(FeatureScaler("none"))(new))
        embedding = fitted.embed_new(rows, joining, self.embedding_)
        ids = grown.graph.node_ids[grown.known :]
        return Extension(embedding, ids, grown.graph, False, grown.new, grown.notes)

    def similar(self, nodes: Any, k: int = 10, *, among: Any = None) -> pd.DataFrame:
        """Return the nodes most similar to the given ones, with explanations; see `similar_nodes`.

        Args:
            nodes: an id, or several.
            k: number of results for each.
            among: ids of the nodes to choose from; all by default.
        """
        self._check_in_memory()
        check_whole("k", k, 1)
        single = isinstance(nodes, str) or np.ndim(nodes) == 0
        asked = find_nodes(self.graph_, [nodes] if single else nodes)
        has_attention = self._fitted().settings["fusion"] != "mlp"
        return similar_nodes(
            self.graph_,
            self.embedding_,
            asked,
            k,
            feature_names=getattr(self, "feature_names_in_", None),
            tokens=self._token_columns(),
            attention=(lambda nodes: self.attention(nodes).mean(axis=(0, 2))) if has_attention else None,
            candidates=None if among is None else find_nodes(self.graph_, among),
        )

    def anomalies(self) -> pd.DataFrame:
        """Return all nodes, first those that features and neighbours do not predict; `find_anomalies`."""
        self._check_in_memory()
        difficulty = self.history_.difficulty
        values = None if difficulty is None else difficulty.float().numpy()
        return find_anomalies(self.graph_, self._by_model(), self.members_, values)

    def links(self, nodes: Any = None, *, top: int = 100, check: bool = True) -> Links:
        """Return the most likely pairs of nodes without an edge; see `find_links`.

        Args:
            nodes: ids, one of which every pair has; all by default.
            top: number of pairs.
            check: hide some edges and fit again without them, to calibrate on hidden edges and to score on
                others; otherwise pairs are ranked by similarity alone.
        """
        self._check_in_memory()
        check_whole("top", top, 1)

        def refit(graph: Graph) -> npt.NDArray[np.float32]:
            fitted: H3GNN = clone(self).fit(graph)
            return fitted._by_model()

        asked = None if nodes is None else find_nodes(self.graph_, nodes)
        embedding = self._by_model()
        return find_links(
            self.graph_, embedding, refit if check else None, queries=asked, top=top, seed=self.seeds_[0]
        )

    def attention(self, nodes: Any = None) -> npt.NDArray[np.float32]:
        """Return how much each token of each fitted node attends to each token.

        `[n_models, nodes, tokens, tokens]`, averaged over heads; the tokens are linear, MLP, hop 1, hop 2, ….

        Args:
            nodes: positions of nodes; all by default.
        """
        self._check_in_memory()
        return self._fitted().attention(None if nodes is None else np.asarray(nodes, dtype=np.int64))

    def save(self, folder: str | Path) -> None:
        """Write the fitted model as safetensors and JSON; if interrupted, the old model stays."""
        check_is_fitted(self, "encoder_")
        tensors = {f"encoder.{name}": value for name, value in self.encoder_.state_dict().items()}
        if self.scaler_.mean is not None and self.scaler_.scale is not None:
            tensors |= {"mean": self.scaler_.mean, "scale": self.scaler_.scale}
        if self.history_.difficulty is not None:
            tensors["difficulty"] = self.history_.difficulty
        params = {name: as_plain(value) for name, value in self.get_settings().items()}
        if not isinstance(params["random_state"], numbers.Integral):
            params["random_state"] = None
        history, scaling = self.history_.as_dict(), self.scaler_.kind
        state = storage.ModelState(params, tensors, self.graph_, history, self.seeds_, scaling, self.cost_)
        storage.save_model(Path(folder), state)

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Read a model that `save` wrote; nothing in the folder is executed."""
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
        smoothing = choose_smoothing(settings, prepared)
        fitted = FittedEncoder(encoder.eval(), prepared, settings, smoothing, device, model._memory())
        embedding = fitted.embed_fitted() if state.graph.in_memory else None
        history = History.from_dict(state.history)
        history.difficulty = state.tensors.get("difficulty")
        model._set_fitted(fitted, embedding, history, state.seeds, state.cost)
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
        self.inference_.device, self.inference_.memory = pick_device(self.device), self._memory()
        return self.inference_

    def _check_in_memory(self) -> None:
        check_is_fitted(self)
        if not self.graph_.in_memory:
            raise InputError(
                "this needs the graph in memory, but the fitted graph is on disk", code="graph-on-disk"
            )

    def _by_model(self) -> npt.NDArray[np.float32]:
        return np.asarray(self.embedding_).reshape(len(self.embedding_), self.n_models, -1)

    def _token_columns(self) -> dict[str, npt.NDArray[np.int64]]:
        """Return each token's columns of the embedding; nothing if it keeps one token only."""
        if self._fitted().settings["output"] != "flatten":
            return {}
        place = np.arange(self._n_features_out).reshape(self.n_models, -1, self.channels)
        names = token_names(self.hops)
        return {name: place[:, at :: len(names)].ravel() for at, name in enumerate(names)}

    def _memory(self) -> int | None:
        return None if self.memory is None else parse_memory(self.memory)


def _fingerprint(
    settings: dict[str, Any], seeds: list[int], graph: GraphLike, device: torch.device
) -> dict[str, Any]:
    """Return everything the result depends on: a checkpoint is resumed only if all of it is equal."""
    return {
        **original(kept_for("run", settings)),
        "precision": "bfloat16" if use_bfloat16(settings["precision"], device) else "float32",  # not "auto"
        "device": device.type,
        "seeds": seeds,
        "graph": graph.provenance.sha256,
    }
