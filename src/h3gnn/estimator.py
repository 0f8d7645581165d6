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
from torch import Tensor

from h3gnn.answers.anomalies import find_anomalies
from h3gnn.answers.extend import Extension, add_nodes, rows_below
from h3gnn.answers.links import Links, find_links
from h3gnn.answers.similarity import find_nodes, similar_nodes
from h3gnn.encoder import EncoderStack, FeatureMatrix, Support
from h3gnn.encoder.encode import (
    Allocate,
    GraphRows,
    LayerwiseEncoder,
    carry_weights,
    embed_models,
    fused_together,
    joined,
)
from h3gnn.encoder.readout import Columns, Smoother, pick_smoothing
from h3gnn.encoder.tokens import token_names
from h3gnn.errors import InputError, check_whole
from h3gnn.graphs.convert import as_graph, find_nearest
from h3gnn.graphs.graph import Graph
from h3gnn.graphs.guards import check_target, is_graph
from h3gnn.graphs.ids import match_nodes, match_rows
from h3gnn.graphs.scaling import FeatureScaler, MomentSums
from h3gnn.graphs.structural import check_same_features, transfer_structural_features
from h3gnn.inference import (
    CHUNK,
    NewEdges,
    PiecewiseEmbedding,
    attach_nodes,
    cut_around,
    own_scale,
    smooth_attached,
)
from h3gnn.ondisk.mapped import MappedGraph
from h3gnn.preprocessing import (
    NO_EDGE,
    Intake,
    by_name,
    check_own_rows,
    named_rows,
    order_of,
    read_input,
    read_rows,
    rows_of,
    steps_of,
    take_columns,
)
from h3gnn.resources import check_memory
from h3gnn.settings import BEFORE, as_plain, by_group, check_arguments, kept_for, parse_memory, preset
from h3gnn.storage import models as storage
from h3gnn.storage.checkpoint_file import Checkpoints, clear
from h3gnn.tables.plan import check_as_is, check_same_plan
from h3gnn.training.batches import (
    SampledBatches,
    WholeGraph,
    compared_nodes,
    rows_in_memory,
    sampled_batches,
)
from h3gnn.training.distributed import Ranks, is_distributed, process_group
from h3gnn.training.history import History, warn_of_collapse
from h3gnn.training.loop import AfterEpochOf, Snapshots
from h3gnn.training.models import (
    Shape,
    Training,
    default_chunk,
    derive_seeds,
    train_models,
)
from h3gnn.training.objectives import OBJECTIVES, assign_objectives
from h3gnn.training.resources import (
    Size,
    check_fits,
    cost_of,
    peak_megabytes,
    physical_memory,
    pick_device,
    pick_group,
    use_bfloat16,
)
from h3gnn.training.sharding import shard_rows


class H3GNN(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Node embeddings without labels, for graphs that mix homophily and heterophily.

    A student encoder sees a part of the graph and is asked for something that it did not see: what its
    teacher, a moving average of itself, makes of the whole graph, or which edges were hidden. The default is
    a committee: models with different objectives, whose embeddings stand side by side. See docs/method.md.

    The defaults are for a graph that nobody has tuned for; `H3GNN.from_preset("paper")` is the paper's
    equations as printed.

    Args:
        channels: width C of a token.
        hops: K, one weighted-GCN token for each hop 1…K.
        least_layers: how many layers even the 1-hop token has; with 2, as in the released code, it hears two
            hops.
        hidden_channels: hidden width of the token MLP and the weighted GCNs; None is 4C and C.
        heads: attention heads; must divide `channels`.
        norm: place of the norm in the Transformer block: "residual-post", "post" or "pre".
        activation: in the MLP of the Transformer block, "gelu" or "relu".
        fusion: "attention"; "hierarchical", where the hops' tokens attend to one another before all do; or
            "mlp" for the ablation without attention.
        output: "flatten" keeps all tokens (D = (2 + hops)·C), "first" only the first (D = C), "max" the
            largest value over tokens (D = C).
        tokens: put the tokens, as they are before they are fused, beside the embedding.
        smoothing: s of the read-out: 0 leaves embeddings as the encoder made them; towards 1 each becomes the
            mean over ever longer walks from its node (for graphs whose neighbours are alike); below 0 it
            is set off against its neighbours (where they differ); "auto" looks at the features of neighbours,
            never at labels, and writes what it chose to `smoothing_`.
        smoother: "walks", or "powers" for the mean over powers of Ã.
        edge_weights: "fixed" at their entry of Ã; one number per edge, "free" as in the paper or "learned"
            within (0, 1); or "computed" from both ends.
        edge_rate: of learned edge weights, their share of the learning rate.
        edge_start: "normalized" starts each edge weight at its entry of Ã; a number starts all there.
        self_loops: whether a node's neighbourhood includes itself.
        normalize: multiply each learned edge weight with its entry of Ã.
        batch_norm: batch norm between the layers of a weighted GCN.
        undirected: let messages flow both ways along each edge.
        token_dropout, attention_dropout: dropout rates in training.
        objective: what a model is asked for: "teacher" (the paper's), "decorrelation", "neighbours", "edges",
            "features" or "masked-features"; or a list, which is dealt out among the models.
        targets: "standardized" brings the columns of the teacher's embedding to one scale, "plain" does not.
        loss: of the objective "teacher": "squared" distance, "cosine" (1 − cos), or "scaled-cosine", the
            square of that.
        feature_drop, edge_drop: chances with which the student does not see a feature column or an edge;
            "auto" is the objective's own.
        teacher_mode: "eval" keeps the teacher free of dropout; "train" does as the released code.
        momentum: α of the teacher's moving average.
        mask: "random", "difficulty" or "probability".
        mask_ratio: R, the share of nodes to mask; "auto" is the objective's own.
        exploit_ratio: r, the share of the mask that difficulty decides.
        mask_size: of probability masks: "bounded" keeps them within half and five fourths of ⌊N·R⌋ nodes,
            "exact" at ⌊N·R⌋, "free" takes what one round of draws gives.
        swap_ratio: the chance of a masked node to show another, random node's features in place of the mask
            token; in mini-batches that of a seed.
        mask_warmup: epochs with random masks at the start.
        mask_token: the learnable mask token starts "normal" or "zero".
        epochs: training steps; 0 leaves the encoder untrained.
        learning_rate, weight_decay: of Adam.
        schedule: "cosine" or "constant" after the warm-up.
        lr_warmup: epochs over which the learning rate rises.
        nodes_per_step: how many nodes the student is compared on in each step, drawn anew; None is all,
            "auto" all up to 8,192, else half and at least 8,192. Messages always flow in the whole graph.
        n_models: how many models to train; their embeddings stand side by side.
        scale_features: "rows" (one length), "columns" (mean 0, variance 1), "none", or "auto".
        n_neighbors: for a table without edges, how many nearest rows each row is joined to.
        batch_size: train on so many nodes at a time, with sampled neighbours; None trains on the full graph.
        fan_out: neighbours per node and hop, one number or one per hop, -1 for all; None is 10, then 5.
        batches: "neighbours", or "clusters" for METIS clusters (needs `pymetis`).
        memory: a budget such as "8GB"; it picks how many nodes are worked on at a time. See docs/scale.md.
        precision: of the fusion block in training: "float32", "bfloat16", or "auto", which is bfloat16 where
            the processor computes in it (docs/performance.md says what that changes). Embeddings are always
            computed in float32.
        feature_storage: "csr", "dense", or "auto" by density.
        random_state: seed; the same seed on the same machine gives the same result, bit for bit on CPU (see
            docs/determinism.md).
        device: "auto", "cpu", "cuda", or one of several: "cuda:1".
        verbose: show a progress bar when standard error is a terminal.

    Attributes:
        encoder_: the trained students, an `EncoderStack` of `n_models` models.
        members_: the objective of each model, in the order of the embedding's columns.
        smoothing_: the strength of smoothing, as set or as chosen.
        graph_: the fitted `Graph`, or `MappedGraph` of a graph in files.
        embedding_: its embedding, float32 `[nodes, n_models · D]`; of several objectives, each column has
            mean 0 and variance 1 before it is smoothed.
        history_: the training log, a `History`.
        cost_: seconds and peak megabytes of the fit, and each member's share of them.
        n_features_in_: number of feature columns.
        feature_names_in_: their names, where they have some.
    """

    def __init__(  # noqa: PLR0915 (scikit-learn wants one assignment for each argument)
        self,
        *,
        channels: int = 128,
        hops: int = 2,
        least_layers: int = 1,
        hidden_channels: int | None = None,
        heads: int = 4,
        norm: str = "post",
        activation: str = "gelu",
        fusion: str = "attention",
        output: str = "flatten",
        tokens: bool = False,
        smoothing: float | str = "auto",
        smoother: str = "walks",
        edge_weights: str = "fixed",
        edge_rate: float = 1.0,
        edge_start: float | str = "normalized",
        self_loops: bool = False,
        normalize: bool = False,
        batch_norm: bool = False,
        undirected: bool = True,
        token_dropout: float = 0.0,
        attention_dropout: float = 0.1,
        objective: str | Sequence[str] = ("teacher", "decorrelation", "neighbours", "edges"),
        targets: str = "standardized",
        loss: str = "squared",
        feature_drop: float | str = "auto",
        edge_drop: float | str = "auto",
        teacher_mode: str = "eval",
        momentum: float = 0.9,
        mask: str = "probability",
        mask_ratio: float | str = "auto",
        exploit_ratio: float = 0.5,
        mask_size: str = "bounded",
        swap_ratio: float = 0.0,
        mask_warmup: int = 10,
        mask_token: str = "zero",
        epochs: int = 50,
        learning_rate: float = 0.002,
        weight_decay: float = 0.0,
        schedule: str = "cosine",
        lr_warmup: int = 10,
        nodes_per_step: int | str | None = "auto",
        n_models: int = 8,
        scale_features: str = "auto",
        n_neighbors: int = 10,
        batch_size: int | None = None,
        fan_out: int | Sequence[int] | None = None,
        batches: str = "neighbours",
        memory: int | str | None = None,
        precision: str = "auto",
        feature_storage: str = "auto",
        random_state: int | np.random.RandomState | None = 0,
        device: str = "auto",
        verbose: bool = False,
    ) -> None:
        self.channels = channels
        self.hops = hops
        self.least_layers = least_layers
        self.hidden_channels = hidden_channels
        self.heads = heads
        self.norm = norm
        self.activation = activation
        self.fusion = fusion
        self.output = output
        self.tokens = tokens
        self.smoothing = smoothing
        self.smoother = smoother
        self.edge_weights = edge_weights
        self.edge_rate = edge_rate
        self.edge_start = edge_start
        self.self_loops = self_loops
        self.normalize = normalize
        self.batch_norm = batch_norm
        self.undirected = undirected
        self.token_dropout = token_dropout
        self.attention_dropout = attention_dropout
        self.objective = objective
        self.targets = targets
        self.loss = loss
        self.feature_drop = feature_drop
        self.edge_drop = edge_drop
        self.teacher_mode = teacher_mode
        self.momentum = momentum
        self.mask = mask
        self.mask_ratio = mask_ratio
        self.exploit_ratio = exploit_ratio
        self.mask_size = mask_size
        self.swap_ratio = swap_ratio
        self.mask_warmup = mask_warmup
        self.mask_token = mask_token
        self.epochs = epochs
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.schedule = schedule
        self.lr_warmup = lr_warmup
        self.nodes_per_step = nodes_per_step
        self.n_models = n_models
        self.scale_features = scale_features
        self.n_neighbors = n_neighbors
        self.batch_size = batch_size
        self.fan_out = fan_out
        self.batches = batches
        self.memory = memory
        self.precision = precision
        self.feature_storage = feature_storage
        self.random_state = random_state
        self.device = device
        self.verbose = verbose

    @classmethod
    def from_preset(cls, name: str, **overrides: Any) -> Self:
        """Return an estimator with named settings; any of them can be overridden.

        Args:
            name: "paper" or its variants "released" and "later", "single", "quick", a benchmark such as
                "texas", or a file of `h3gnn tune`.
            overrides: arguments to set otherwise.
        """
        given = {**preset(name), **overrides}
        unknown = sorted(set(given) - set(cls().get_params()))
        if unknown:
            raise InputError(f"the preset {name} sets {unknown[0]}, which H3GNN does not have")
        return cls(**given)

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
        """Learn from a graph; labels, if there are any, are never looked at.

        Ctrl-C lets the epoch end and raises `TrainingStopped`, a `KeyboardInterrupt`; the model is then kept
        as it is, with its `embedding_` and `history_`. A second Ctrl-C does not wait.

        Args:
            X: a PyG `Data`, a networkx graph, a square scipy sparse adjacency, a `Graph`; or features (dense
                or scipy sparse) with `edge_index`; or a table alone, which gets a nearest-neighbour graph.
            y: ignored, unless it looks like edges: then it is refused.
            edge_index: when X holds features, `[2, edges]`, rows of source and target, a scipy sparse
                adjacency, or a DataFrame (see `as_graph`).
            checkpoints: where to write down the state of the training, and how often. If the folder holds a
                run with the same settings on the same graph, the fit goes on from there; when it ends, the
                checkpoints are removed.
            snapshots: after which epochs to hand the models' embedding to a function; not in mini-batches,
                and not together with checkpoints.
            after_epoch_of: gives, for a group of models that starts with a given one, what is called after
                each of its epochs with the epoch and the records so far.
        """
        check_arguments(self.get_params())
        check_target(X, y)
        self._check_fit(X, checkpoints, snapshots)
        started, device = time.perf_counter(), pick_device(self.device)
        self._take_in(X if isinstance(X, MappedGraph) else read_input(self, X, edge_index))
        at_once, chunk = self._room(device)
        with process_group(device) as ranks:
            self.encoder_, self.history_ = train_models(
                self._stack,
                self._source(device, ranks),
                self.seeds_,
                Training.of(self.get_params()),
                at_once=at_once,
                chunk=chunk,
                show=self.verbose,
                checkpoints=checkpoints,
                fingerprint=self._fingerprint(device),
                snapshots=self._read_out_of(snapshots, device),
                after_epoch_of=after_epoch_of,
                ranks=ranks,
            )
            if isinstance(self.graph_, Graph):
                self.embedding_ = self._embed_fitted()
        self.cost_ = cost_of(time.perf_counter() - started, peak_megabytes(device), self.n_models)
        warn_of_collapse(self.history_, stacklevel=3)
        stopped, self.history_.stopped = self.history_.stopped, None
        if stopped is not None:  # the model is fitted, as far as the training came
            raise stopped
        if checkpoints is not None and not checkpoints.keep_finished:
            clear(Path(checkpoints.folder))
        return self

    def _check_fit(self, X: Any, checkpoints: Checkpoints | None, snapshots: Snapshots | None) -> None:  # noqa: N803
        """Refuse what does not go together, before anything is read."""
        mapped = isinstance(X, MappedGraph)
        if checkpoints is not None:
            checkpoints.check()
            if not isinstance(self.random_state, numbers.Integral):
                raise InputError(
                    "checkpoints need random_state to be a whole number, so that the run can go on"
                )
        if self.batch_size is not None or mapped:
            if snapshots is not None:
                raise InputError("snapshots are taken of the full graph: leave batch_size out")
            if self.batch_size is None:
                raise InputError(
                    "a graph in files is trained in mini-batches: give batch_size (--batch-size 1024)"
                )
            return
        if checkpoints is not None and snapshots is not None:
            raise InputError("a run that goes on from checkpoints has no earlier snapshots: give one of them")
        if is_distributed():
            raise InputError("several processes share mini-batches: give batch_size (--batch-size 1024)")

    def _take_in(self, graph: Graph | MappedGraph) -> None:
        """Learn what does not need training: the graph itself, its scaling, its support, the seeds."""
        for learned in ("embedding_", "columns_"):  # of an earlier fit
            self.__dict__.pop(learned, None)
        Shape.of(self.get_params()).check_memory(graph.num_features, 1)
        self.graph_: Any = graph  # a Graph, or a MappedGraph where it lies in files
        self.scaler_, self.support_ = self._intake.scaler(graph), self._intake.support(graph)
        take_columns(self, graph)
        self.is_table_ = graph.provenance.kind == "table"
        self.seeds_ = derive_seeds(self.random_state, self.n_models)
        self.members_ = assign_objectives(self.objective, self.n_models)
        self.smoothing_ = self._pick_smoothing()

    def embedding_chunks(self, graph: MappedGraph | None = None) -> Iterator[npt.NDArray[np.float32]]:
        """Yield an embedding some nodes at a time, `[some, n_models · D]`, in bounded memory.

        A graph in files has no `embedding_`: this is how its embedding is had.

        Args:
            graph: another graph in files, with the columns of the fitted one, which is the default. As in
                `transform`, an edge that was fitted keeps its learned weight.
        """
        check_is_fitted(self, "encoder_")
        if graph is None and isinstance(self.graph_, Graph):
            yield from np.array_split(self.embedding_, -(-len(self.embedding_) // CHUNK))
        else:
            yield from self._piecewise(graph).chunks()

    @contextmanager
    def embedding_rows(self) -> Iterator[npt.NDArray[np.float32]]:
        """Give the fitted graph's embedding as one array; past half of memory it lies in a temporary file."""
        check_is_fitted(self, "encoder_")
        if isinstance(self.graph_, Graph):
            yield self.embedding_
            return
        with self._piecewise(None).rows() as rows:
            yield rows

    def transform(self, X: Any, *, edge_index: Any = None) -> Any:  # noqa: N803
        """Return one embedding per node, `[nodes, n_models · D]`.

        The fitted graph gets its fitted embedding. In a new graph with the same feature columns, an edge that
        was fitted keeps its learned weight and every other edge takes its start value. Nodes are the same
        when their ids are, or, where the user gave no ids, when position and features are. Where neither
        graph has features, its features are computed in terms of the fitted one. A new row of a
        table hears its nearest fitted rows. Columns of features are known by their names. Rows without edges
        are embedded where they are those of the fitted graph, or where the model was fitted without edges.
        """
        check_is_fitted(self)
        if isinstance(X, MappedGraph):
            raise InputError("a graph in files is embedded in chunks: use embedding_chunks(graph)")
        if edge_index is None and not is_graph(X):
            self._check_in_memory()
            return self._transform_table(X)
        graph = as_graph(X, edge_index, plan=self.graph_.plan)
        check_same_features(self.graph_, graph)
        if isinstance(self.graph_, MappedGraph):
            check_as_is(graph.plan)
        check_same_plan(self.graph_.plan, graph.plan)
        graph = graph if graph.provenance.structural else by_name(self.graph_, graph)
        return named_rows(self, self._transform_graph(graph), graph, X)

    def _transform_graph(self, graph: Graph) -> npt.NDArray[np.float32]:
        if graph.provenance.sha256 == self.graph_.provenance.sha256:
            return self.embedding_.copy()
        if graph.provenance.structural:
            graph, same = transfer_structural_features(self.graph_, graph)
        else:
            same = match_nodes(self.graph_, graph)
        support = self._intake.support(graph)
        weights = carry_weights(self.encoder_, self.support_, support, same)
        return self._encode(graph, support, weights)

    def fit_transform(self, X: Any, y: Any = None, **how: Any) -> Any:  # noqa: N803
        """Fit, and return the embedding of the fitted graph; takes what `fit` takes."""
        self.fit(X, y, **how)
        return named_rows(self, self.embedding_.copy(), self.graph_, X)

    def extend(self, X: Any, edges: Any = None, *, refresh: bool = False) -> Extension:  # noqa: N803
        """Embed nodes that have joined the fitted graph; only the new rows are worked out.

        The new nodes hear the fitted ones and one another; the fitted nodes hear nothing new and keep their
        embeddings, as a vector store needs it. The model itself stays as it is.

        Args:
            X: features of the new nodes alone: a DataFrame whose index names them; or an array, whose rows
                are positions after the fitted nodes.
            edges: DataFrame of source, target and perhaps weight, by ids; or `[2, edges]` positions. A model
                of a table needs none: new rows join their nearest.
            refresh: embed all nodes anew in the grown graph; edges between fitted nodes are taken, too.
        """
        self._check_in_memory()
        if self.smoothing_ and self.smoother == "powers" and not refresh:
            raise InputError('smoother="powers" reads out the whole graph together: extend with refresh=True')
        table = X if isinstance(X, Graph) else as_graph(X, NO_EDGE, plan=self.graph_.plan)
        check_same_plan(self.graph_.plan, table.plan)
        table = by_name(self.graph_, table)
        if edges is None and self.is_table_:
            edges = self._nearest(self.scaler_(table.features).to_dense()).edge_index.numpy()
        grown = add_nodes(self.graph_, table, edges, between_known=refresh)
        if refresh:
            every = self.transform(grown.graph)
            return Extension(every, grown.graph.node_ids, grown.graph, True, grown.new, grown.notes)
        weight = self.graph_.edge_weight
        loop = 1.0 if weight is None else float(weight[self.graph_.edge_index.diff(dim=0)[0] != 0].mean())
        joining = NewEdges(grown.edge_index, grown.edge_weight, grown.known, grown.new, loop)
        new = torch.arange(grown.known, grown.graph.num_nodes)
        rows = self.scaler_(rows_in_memory(grown.graph.features, self.support_).read(new))
        embedding, ids = self._embed_new(rows, joining), grown.graph.node_ids[grown.known :]
        return Extension(embedding, ids, grown.graph, False, grown.new, grown.notes)

    def similar(self, nodes: Any, k: int = 10, *, among: Any = None) -> pd.DataFrame:
        """Return the nodes that are nearest to the named ones, with the reasons; see `similar_nodes`.

        Args:
            nodes: an id, or several.
            k: how many for each.
            among: ids of the nodes to choose from; all by default.
        """
        self._check_in_memory()
        check_whole("k", k, 1)
        alone = isinstance(nodes, str) or np.ndim(nodes) == 0
        asked = find_nodes(self.graph_, [nodes] if alone else nodes)
        return similar_nodes(
            self.graph_,
            self.embedding_,
            asked,
            k,
            feature_names=getattr(self, "feature_names_in_", None),
            tokens=self._token_columns(),
            attention=None if self.fusion == "mlp" else self._listens,
            candidates=None if among is None else find_nodes(self.graph_, among),
        )

    def anomalies(self) -> pd.DataFrame:
        """Return all nodes, first those that neither features nor neighbours predict; `find_anomalies`."""
        self._check_in_memory()
        difficulty = self.history_.difficulty
        told = None if difficulty is None else difficulty.float().numpy()
        return find_anomalies(self.graph_, self._by_model(), self.members_, told)

    def links(self, nodes: Any = None, *, top: int = 100, check: bool = True) -> Links:
        """Return the likeliest pairs of nodes that no edge joins; see `find_links`.

        Args:
            nodes: ids, one of which every pair has; all by default.
            top: how many pairs.
            check: hide some edges and fit once more without them, to learn how edges look that an embedding
                has not seen and to score on others; else pairs are ranked by similarity alone.
        """
        self._check_in_memory()
        check_whole("top", top, 1)

        def refit(graph: Graph) -> npt.NDArray[np.float32]:
            fitted: H3GNN = clone(self).fit(graph)
            return fitted._by_model()

        asked = None if nodes is None else find_nodes(self.graph_, nodes)
        return find_links(
            self.graph_,
            self._by_model(),
            refit if check else None,
            queries=asked,
            top=top,
            seed=self.seeds_[0],
        )

    def _check_in_memory(self) -> None:
        check_is_fitted(self)
        if isinstance(self.graph_, MappedGraph):
            raise InputError("this needs the graph in memory, and the fitted one lies in files")

    def _by_model(self) -> npt.NDArray[np.float32]:
        found: npt.NDArray[np.float32] = self.embedding_.reshape(len(self.embedding_), self.n_models, -1)
        return found

    def _token_columns(self) -> dict[str, npt.NDArray[np.int64]]:
        """Return each token's columns of the embedding; nothing where it keeps one token only."""
        if self.output != "flatten":
            return {}
        place = np.arange(self._n_features_out).reshape(self.n_models, -1, self.channels)
        names = token_names(self.hops)
        return {name: place[:, at :: len(names)].ravel() for at, name in enumerate(names)}

    def _listens(self, nodes: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """Return the share of attention that each token of some nodes gets, `[nodes, tokens]`."""
        shares: npt.NDArray[np.float32] = self.attention(nodes).mean(axis=(0, 2))
        return shares

    def attention(self, nodes: Any = None) -> npt.NDArray[np.float32]:
        """Return how much each token of each fitted node listens to each token.

        `[n_models, nodes, tokens, tokens]`, averaged over heads; the tokens are linear, MLP, hop 1, hop 2, ….

        Args:
            nodes: positions of the nodes that are asked for; all by default.
        """
        check_is_fitted(self)
        if isinstance(self.graph_, MappedGraph):
            raise InputError("the attention of a graph in files is not kept: fit a smaller graph in memory")
        encoder = self.encoder_.to(pick_device(self.device)).eval()
        graph, edge_weights, chosen = self._rows(self.graph_, self.support_), None, None
        if nodes is not None:
            asked = torch.as_tensor(np.asarray(nodes, dtype=np.int64))
            graph, edge_weights, kept = self._part(self.support_, asked)
            chosen = torch.searchsorted(kept, asked)
        parts = LayerwiseEncoder(encoder, graph, edge_weights).tokens()
        if chosen is not None:
            parts = iter([torch.cat(list(parts), dim=1)[:, chosen]])

        def over_heads(tokens: Tensor) -> Tensor:
            weights = encoder.attention(tokens)
            if weights is None:
                raise InputError('fusion="mlp" has no attention to show')
            return weights.mean(dim=4).cpu()

        with torch.no_grad():
            each = [over_heads(piece) for tokens in parts for piece in fused_together(tokens)]
            listened: npt.NDArray[np.float32] = torch.cat(each, dim=1).numpy()
        return listened

    def save(self, folder: str | Path) -> None:
        """Write the fitted model as safetensors and JSON; a kill leaves the old model or the new one."""
        check_is_fitted(self)
        storage.save_model(Path(folder), self._state())

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Read what `save` wrote; nothing in the folder is executed."""
        state = storage.load_model(Path(folder))
        model = cls(**{**BEFORE, **state.params})
        with storage.naming_settings(folder):
            check_arguments(model.get_params())
        model.graph_, model.seeds_ = state.graph, state.seeds
        model.history_ = History.from_dict(state.history)
        model.history_.difficulty, model.cost_ = state.tensors.get("difficulty"), state.cost
        take_columns(model, state.graph)
        model.is_table_ = state.graph.provenance.kind == "table"
        model.scaler_ = FeatureScaler(state.scaling, state.tensors.get("mean"), state.tensors.get("scale"))
        model.members_ = assign_objectives(model.objective, model.n_models)
        model.support_ = model._intake.support(state.graph)
        model.smoothing_ = model._pick_smoothing()
        entries = model.support_.entries
        with torch.device("meta"):
            storage.check_weights(state, model._stack(model.n_models, entries))
        model.encoder_ = model._stack(model.n_models, entries)
        model.encoder_.fuse_in_bfloat16 = False
        storage.restore(model.encoder_, state.tensors)
        model.encoder_.eval()
        if isinstance(state.graph, Graph):
            model.embedding_ = model._embed_fitted()
        return model

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:  # noqa: N803
        """Show what differs from the defaults; where that is much, under the headings of its groups."""
        usual = type(self)().get_params()
        changed = {name: value for name, value in self.get_params().items() if value != usual[name]}
        if len(changed) <= 3:
            return f"H3GNN({', '.join(f'{name}={value!r}' for name, value in changed.items())})"
        lines = []
        for group, names in by_group().items():
            told = [f"    {name}={changed[name]!r}," for name in names if name in changed]
            lines += [f"    # {group}", *told] if told else []
        return "\n".join(["H3GNN(", *lines, ")"])

    @property
    def _n_features_out(self) -> int:
        beside = (2 + self.hops) * self.channels if self.tokens else 0
        return self.n_models * (self.encoder_.out_channels + beside)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.transformer_tags.preserves_dtype = []
        return tags

    def _state(self) -> storage.ModelState:
        tensors = {f"encoder.{name}": value for name, value in self.encoder_.state_dict().items()}
        if self.scaler_.mean is not None and self.scaler_.scale is not None:
            tensors |= {"mean": self.scaler_.mean, "scale": self.scaler_.scale}
        if self.history_.difficulty is not None:
            tensors["difficulty"] = self.history_.difficulty
        params = {name: as_plain(value) for name, value in self.get_params().items()}
        if not isinstance(params["random_state"], numbers.Integral):
            params["random_state"] = None
        return storage.ModelState(
            params, tensors, self.graph_, self.history_.as_dict(), self.seeds_, self.scaler_.kind, self.cost_
        )

    @property
    def _intake(self) -> Intake:
        return Intake.of(self.get_params())

    def _stack(self, models: int, entries: int | None = None) -> EncoderStack:
        """Return so many encoders, not yet drawn."""
        if entries is None:
            entries = 0 if self.batch_size is not None else self.support_.entries
        device = pick_device(self.device)
        return Shape.of(self.get_params()).build(self.n_features_in_, entries, models, device)

    def _fingerprint(self, device: torch.device) -> dict[str, Any]:
        """Return what the result depends on: a checkpoint is for a run in which all of it is the same."""
        return {
            **kept_for("run", self.get_params()),
            "precision": "bfloat16" if use_bfloat16(self.precision, device) else "float32",  # not "auto"
            "device": device.type,
            "seeds": self.seeds_,
            "graph": self.graph_.provenance.sha256,
        }

    def _room(self, device: torch.device) -> tuple[int | None, int | None]:
        """Return how many models to train at once and how many nodes to fuse at a time in a memory budget.

        Without a budget, and in mini-batches, nothing: training asks the machine.
        """
        if self.batch_size is not None:
            return None, None
        with torch.device("meta"):
            one = self._stack(1, entries=0)
        size = Size(
            nodes=self.graph_.num_nodes,
            entries=self.support_.entries,
            features=self.n_features_in_,
            channels=self.channels,
            hops=self.hops,
            first_width=sum(one.input.widths),
            mlp_width=one.input.widths[1],
            heads=self.heads,
            models=self.n_models,
            fused_tokens=one.fused_tokens,
        )
        if self.memory is None:
            check_fits(size, device)
            return None, None
        return pick_group(parse_memory(self.memory), size, default_chunk(device, 1))

    def _source(self, device: torch.device, ranks: Ranks | None = None) -> WholeGraph | SampledBatches:
        """Return the fitted graph as training takes it: as one batch, or in many shared by processes."""
        if self.batch_size is None:
            assert isinstance(self.graph_, Graph)
            features = self._features(self.graph_.features, device)
            compared = compared_nodes(self.nodes_per_step, self.graph_.num_nodes)
            return WholeGraph(features, self.support_.to(device), self.hops, compared)
        in_memory = isinstance(self.graph_, Graph)
        return sampled_batches(
            shard_rows(self._rows_anywhere(), ranks or Ranks(), in_memory=in_memory),
            self.hops,
            device,
            batch_size=self.batch_size,
            fan_out=self.fan_out,
            batches=self.batches,
            paired=any(OBJECTIVES[name].needs_pairs for name in self.members_),
        )

    def _rows_anywhere(self) -> GraphRows:
        """Return the fitted graph as rows that are read on demand, from memory or from files."""
        return rows_of(self.graph_, self.scaler_, self.support_)

    def _rows(self, graph: Graph, support: Support) -> GraphRows:
        """Return a graph in memory on the device of the encoder."""
        device = pick_device(self.device)
        return GraphRows.at_hand(self._features(graph.features, device), support.to(device))

    def _budget(self) -> int:
        return physical_memory() if self.memory is None else parse_memory(self.memory)

    def _features(self, features: Tensor, device: torch.device) -> FeatureMatrix:
        return FeatureMatrix(self.scaler_(features).to(device), storage=self.feature_storage)

    def _embed_fitted(self) -> npt.NDArray[np.float32]:
        """Return the fitted graph's embedding, read out, in as much memory as training was given."""
        assert isinstance(self.graph_, Graph)
        if self.memory is None and self.batch_size is None:
            encoded = self._embed(self._rows(self.graph_, self.support_))
        else:
            encoded = torch.cat(list(self._layers().chunks(with_tokens=self.tokens)), dim=1).cpu()
        rows = joined(encoded)
        self.columns_ = Columns.of(rows) if self._is_committee() else None
        return _as_array(self._smoother(self.graph_, rows.device)(self._scaled(rows)))

    def _encode(self, graph: Graph, support: Support, edge_weights: Tensor) -> npt.NDArray[np.float32]:
        """Return the embedding of another graph, read out as the fitted one's, `[nodes, models · D]`."""
        device = pick_device(self.device)
        rows = joined(self._embed(self._rows(graph, support), edge_weights.to(device)))
        return _as_array(self._smoother(graph, device)(self._scaled(rows)))

    def _embed(self, graph: GraphRows, edge_weights: Tensor | None = None) -> Tensor:
        """Return the students' embeddings as they leave the encoder, `[models, nodes, D]`."""
        encoder = self.encoder_.to(pick_device(self.device))
        return embed_models(encoder, graph, edge_weights, with_tokens=self.tokens)

    def _is_committee(self) -> bool:
        """Whether models with different objectives stand side by side: then their columns have one scale."""
        return len(set(self.members_)) > 1

    def _scaled(self, rows: Tensor) -> Tensor:
        columns = self._fitted_columns()
        return rows if columns is None else columns(rows)

    def _fitted_columns(self) -> Columns | None:
        """Return the scale of the fitted embedding's columns; that of a graph in files is learned when asked.

        None where one objective alone leaves the columns as they are.
        """
        if not hasattr(self, "columns_"):
            self.columns_ = None
            if self._is_committee():
                sums = MomentSums(self._n_features_out)
                for piece in self._piecewise(None).encode(None):
                    sums.add(piece.cpu())
                self.columns_ = Columns.of_moments(sums.mean, sums.squares / sums.rows)
        return self.columns_

    def _layers(
        self, allocate: Allocate | None = None, rows: GraphRows | None = None, weights: Tensor | None = None
    ) -> LayerwiseEncoder:
        encoder = self.encoder_.to(pick_device(self.device)).eval()
        return LayerwiseEncoder(encoder, rows or self._rows_anywhere(), weights, CHUNK, allocate)

    def _piecewise(self, graph: MappedGraph | None) -> PiecewiseEmbedding:
        """Return what embeds the fitted graph, or another one in files, piece by piece."""
        if graph is None or graph.provenance.sha256 == self.graph_.provenance.sha256:
            asked, rows, weights, scale = self.graph_, self._rows_anywhere(), None, own_scale
        else:
            asked, (rows, weights), scale = graph, self._taken_in(graph), self._on_fitted_scale

        def encode(allocate: Allocate | None) -> Iterator[Tensor]:
            yield from map(joined, self._layers(allocate, rows, weights).chunks(with_tokens=self.tokens))

        return PiecewiseEmbedding(
            encode,
            asked.num_nodes,
            self._n_features_out,
            self._budget(),
            scale if self._is_committee() else None,
            self._smoother(asked),
        )

    def _taken_in(self, graph: MappedGraph) -> tuple[GraphRows, Tensor | None]:
        """Return another graph in files as the fitted encoder reads it, and weights of learned edges."""
        check_same_features(self.graph_, graph)
        check_as_is(self.graph_.plan)
        support = self._intake.support(graph)
        rows = rows_of(graph, self.scaler_, support, order_of(self.graph_, graph))
        if not self.encoder_.edges.learns:
            return rows, None
        check_memory(
            8 * (self.n_models + 4) * support.entries, f"learned weights of {support.entries:,} edges"
        )
        same = match_nodes(self.graph_, graph)
        return rows, carry_weights(self.encoder_, self.support_, support, same)

    def _on_fitted_scale(self, rows: Tensor, columns: slice) -> Tensor:
        fitted = self._fitted_columns()
        assert fitted is not None
        return Columns(fitted.mean[columns], fitted.spread[columns])(rows)

    def _read_out_of(self, snapshots: Snapshots | None, device: torch.device) -> Snapshots | None:
        """Let snapshots be read out as a fitted embedding is."""
        if snapshots is None or not isinstance(self.graph_, Graph):
            return None
        smoother = self._smoother(self.graph_, device)

        def read_out(rows: Tensor) -> Tensor:
            return smoother(Columns.of(rows)(rows) if self._is_committee() else rows)

        return snapshots.through(read_out, with_tokens=self.tokens)

    def _pick_smoothing(self) -> float:
        """Return the strength of the read-out's smoothing: as it is set, or as the graph's features ask."""
        if not isinstance(self.smoothing, str):
            return float(self.smoothing)
        return pick_smoothing(self._rows_anywhere())

    def _smoother(self, graph: Graph | MappedGraph, device: torch.device | None = None) -> Smoother:
        if not self.smoothing_:
            return Smoother(None, 0.0)
        return Smoother(steps_of(graph, self.smoother, device), self.smoothing_)

    def _transform_table(self, X: Any) -> npt.NDArray[np.float32]:  # noqa: N803
        graph = read_rows(self, X, self.graph_)
        if not self.is_table_:
            check_own_rows(self.graph_, graph)
            return self.embedding_.copy()
        rows = graph.features
        known = match_rows(self.graph_.features, rows)
        embedding: npt.NDArray[np.float32] = self.embedding_[np.maximum(known, 0)]
        new = np.flatnonzero(known < 0)
        if new.size:
            fresh = self.scaler_(rows).to_dense()[new]
            embedding[new] = self._embed_new(fresh, self._nearest(fresh))
        return embedding

    def _nearest(self, rows: Tensor) -> NewEdges:
        """Return the edges by which new, scaled rows of a table hear their nearest fitted rows."""
        fitted = self.scaler_(self.graph_.features).to_dense()
        found = torch.from_numpy(find_nearest(fitted, rows, self.n_neighbors))
        return NewEdges.to_nearest(found, self.graph_.num_nodes)

    def _embed_new(self, rows: Tensor, edges: NewEdges) -> npt.NDArray[np.float32]:
        """Return the embeddings of new, scaled rows beside the fitted nodes, which stay as they are."""
        support = attach_nodes(self.support_, edges, undirected=self.undirected, self_loops=self.self_loops)
        new = torch.arange(edges.known, edges.known + edges.new)
        graph, weights, kept = self._part(support, new, rows)
        encoded = joined(self._embed(graph, weights))[torch.searchsorted(kept, new)].cpu()
        known = torch.from_numpy(self.embedding_)
        return _as_array(smooth_attached(self._scaled(encoded), known, edges, self.smoothing_))

    def _part(
        self, support: Support, nodes: Tensor, new: Tensor | None = None
    ) -> tuple[GraphRows, Tensor, Tensor]:
        """Return the part of a graph that some nodes hear, its edge weights, and which nodes it has.

        Args:
            support: of the fitted graph, and of new nodes after it.
            nodes: whose embeddings are wanted.
            new: the scaled features of the new nodes.
        """
        device, known = pick_device(self.device), self.graph_.num_nodes
        part, kept = cut_around(support, nodes, self.hops)
        weights = carry_weights(self.encoder_, self.support_, part, torch.where(kept < known, kept, -1))
        read = rows_in_memory(self.graph_.features, self.support_).read
        features = self.scaler_(read(kept[kept < known]))
        if new is not None:
            features = rows_below(features, new)
        matrix = FeatureMatrix(features.to(device), storage=self.feature_storage)
        return GraphRows.at_hand(matrix, part.to(device)), weights.to(device), kept


def _as_array(embedding: Tensor) -> npt.NDArray[np.float32]:
    """Return an embedding on any device as an array."""
    found: npt.NDArray[np.float32] = embedding.contiguous().cpu().numpy()
    return found
