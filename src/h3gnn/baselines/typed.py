"""Systems for graphs with several types of nodes, which classify the nodes of one type.

`PathMeans` and `JoinedBoosting` need no network: means of features along paths of relations, and boosting
on columns joined over the links. `RGCN` and `HGT` are message passing over all types, by the layers of PyG.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import accumulate, islice, product
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
import torch
from torch import Tensor, nn
from torch.nn import functional

from h3gnn.baselines.embedder import forked_rng, minimize
from h3gnn.baselines.layers import Features
from h3gnn.baselines.supervised import BestEpochs
from h3gnn.errors import InputError
from h3gnn.graphs.joins import joined_columns
from h3gnn.graphs.relational import Integers, NodeTable, PathFeatures, RelationalGraph, reduced, scaled
from h3gnn.graphs.scaling import torch_features
from h3gnn.resources import one_thread

Floats = npt.NDArray[np.float32]

FLOOR = 1e-5
"""The smallest probability that boosting predicts."""
OVERSAMPLED, ITERATIONS = 32, 2
"""Further random directions, and power iterations, of the randomized singular value decomposition."""


class TypedSystem(ABC):
    """A system for one type of a relational graph; its fields are its settings."""

    embeds: ClassVar[bool] = False
    """Whether it returns an embedding, without labels; else it predicts classes."""
    has_chance: ClassVar[bool] = True
    """Whether the result depends on the seed."""
    knows_time: ClassVar[bool] = False
    """Whether it can leave out rows that are later than a node: `fit` then takes `row_times`."""

    @abstractmethod
    def fit(
        self,
        graph: RelationalGraph,
        type_name: str,
        labels: Tensor,
        train_mask: Tensor,
        val_mask: Tensor,
        seed: int,
    ) -> Tensor:
        """Return an embedding `[nodes, D]`, or log-probabilities `[splits, nodes, classes]`.

        Args:
            graph: all types and relations.
            type_name: the type whose nodes have classes.
            labels: int64 `[nodes]`, -1 where unknown; for `JoinedBoosting` also numbers, NaN where unknown,
                which it predicts as `[splits, nodes, 1]`.
            train_mask, val_mask: bool `[nodes, splits]`. A classifier learns from training nodes and chooses
                its epoch or setting on validation nodes.
            seed: of all random numbers.
        """


def scaled_rows(table: NodeTable) -> Any:
    """Return the features of a type in comparable columns, dense or sparse; None for a type without."""
    encoded = table.plan is not None and not table.plan.as_is
    return scaled(table.features, table.features, encoded=encoded) if table.features.shape[1] else None


def principal(
    multiply: Callable[[Any], Any], back: Callable[[Any], Any], shape: tuple[int, int], count: int
) -> Floats:
    """Return the coordinates of centred rows Z along their leading directions, `[rows, count or fewer]`.

    Z is given by its products, so that a product of sparse matrices is never computed as a whole; see Halko,
    Martinsson and Tropp (2011) for the method.

    Args:
        multiply: returns Z W.
        back: returns Z' W.
        shape: of Z.
        count: the largest number of directions.
    """
    rows, columns = shape
    mean = back(np.full((rows, 1), 1 / max(1, rows), np.float32))

    def centred(w: Any) -> Any:
        return multiply(w) - mean.T @ w

    def centred_back(w: Any) -> Any:
        return back(w) - mean @ w.sum(axis=0, keepdims=True)

    width = min(count + OVERSAMPLED, rows, columns)
    basis = np.random.default_rng(0).standard_normal((columns, width)).astype(np.float32)
    basis = np.linalg.qr(centred(basis))[0]
    for _ in range(ITERATIONS):
        basis = np.linalg.qr(centred(np.linalg.qr(centred_back(basis))[0]))[0]
    left, sizes, _ = np.linalg.svd(centred_back(basis).T, full_matrices=False)
    return np.asarray((basis @ left * sizes)[:, :count], dtype=np.float32)


@dataclass(frozen=True)
class PathMeans(TypedSystem):
    r"""Means of features along every path of relations that starts at the type, without training.

    A path :math:`r_1 \dots r_k` gives :math:`\bar A_{r_1} \cdots \bar A_{r_k} X`, with the features X of the
    type at its end and each :math:`\bar A` divided by its row sums. Each path is reduced to principal
    directions and divided by the root mean square length of its rows; all are joined with the own features.
    In place of missing features X is the identity; missing own features are left out.
    """

    embeds = True
    has_chance = False

    length: int = 4
    most_paths: int = 64
    directions: int = 256

    def fit(
        self,
        graph: RelationalGraph,
        type_name: str,
        labels: Tensor | None = None,
        train_mask: Tensor | None = None,
        val_mask: Tensor | None = None,
        seed: int = 0,
    ) -> Tensor:
        """Return the embedding; labels and seed are not used."""
        rows = {name: scaled_rows(table) for name, table in graph.types.items()}
        own, walks = rows[type_name], PathFeatures(graph, type_name)
        chains = [] if own is None else [[own]]
        for path in islice(walks.paths(self.length), self.most_paths):
            end = path[-1].end
            if rows[end] is None:
                rows[end] = sp.eye_array(graph.type(end).nodes, format="csr", dtype=np.float32)
            chains.append([*(_averaging(walks.matrix(hop)) for hop in path), rows[end]])
        blocks = [self._block(chain) for chain in chains]
        return torch.from_numpy(np.concatenate(blocks, axis=1))

    def _block(self, chain: Sequence[Any]) -> Floats:
        shape = (chain[0].shape[0], chain[-1].shape[1])
        found = principal(
            lambda w: reduce(lambda z, one: one @ z, reversed(chain), w),
            lambda w: reduce(lambda z, one: one.T @ z, chain, w),
            shape,
            self.directions,
        )
        return found / max(float(np.sqrt(np.square(found).sum(axis=1).mean())), 1e-12)


def _averaging(links: sp.csr_array) -> sp.csr_array:
    """Divide the rows of a matrix by their sums; a row without links is 0."""
    total = np.asarray(links.sum(axis=1)).ravel()
    return (sp.diags_array(1 / np.where(total > 0, total, 1)) @ links).tocsr().astype(np.float32)


@dataclass(frozen=True)
class JoinedBoosting(TypedSystem):
    """Histogram gradient boosting on a type's own columns and those joined over one and two links.

    Joined are counts, means and other summaries, see `graphs.joins.joined_columns`. Principal components take
    the place of more than `components` columns of a type. Validation nodes choose the leaves and the rows per
    leaf, as for boosting on one table.
    """

    has_chance = False
    knows_time = True

    components: int = 64
    max_leaf_nodes: tuple[int, ...] = (8, 31)
    min_samples_leaf: tuple[int, ...] = (3, 20)
    max_iter: int = 100

    def fit(
        self,
        graph: RelationalGraph,
        type_name: str,
        labels: Tensor,
        train_mask: Tensor,
        val_mask: Tensor,
        seed: int,
        row_times: Integers | None = None,
    ) -> Tensor:
        """Return the log-probabilities or numbers of all nodes for each split.

        With `row_times`, only linked rows that are earlier than a node count.
        """
        columns, known = self.columns(graph, type_name, row_times), labels.numpy()
        masks = (train_mask.t().numpy(), val_mask.t().numpy())
        return torch.from_numpy(
            np.stack([self._fit(columns, known, *one) for one in zip(*masks, strict=True)])
        )

    def columns(self, graph: RelationalGraph, type_name: str, row_times: Integers | None = None) -> Floats:
        """Return own and joined columns, NaN where there is no value."""
        narrow = replace(graph, types={name: self._narrow(table) for name, table in graph.types.items()})
        table = narrow.type(type_name)
        sparse = bool(sp.issparse(table.features))
        own = table.features.toarray() if sparse else table.features
        joined = joined_columns(narrow, type_name, row_times=row_times).values
        return np.hstack([own, joined]).astype(np.float32)

    def _narrow(self, table: NodeTable) -> NodeTable:
        """Return a type with few columns: the identity of few nodes without, components of many columns."""
        rows = scaled_rows(table)
        if rows is None and table.nodes <= self.components:
            return replace(table, features=np.eye(table.nodes, dtype=np.float32), feature_names=(), plan=None)
        if rows is None or rows.shape[1] <= self.components:
            return table
        return replace(table, features=reduced(rows, self.components), feature_names=(), plan=None)

    def _fit(self, columns: Floats, known: Any, train: Any, val: Any) -> Floats:
        """Return the prediction of the setting with the smallest loss on validation nodes."""
        from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

        numbers = known.dtype.kind == "f"
        present = ~np.isnan(known) if numbers else known >= 0
        train, val, classes = train & present, val & present, 0 if numbers else int(known.max()) + 1
        if not train.any() or (not numbers and len(np.unique(known[train])) < 2):
            raise InputError("boosting needs training nodes of two classes", code="no-usable-split")
        tried = []
        for leaves, rows in product(self.max_leaf_nodes, self.min_samples_leaf):
            kind = HistGradientBoostingRegressor if numbers else HistGradientBoostingClassifier
            model = kind(
                max_iter=self.max_iter,
                max_leaf_nodes=leaves,
                min_samples_leaf=rows,
                l2_regularization=1.0,
                early_stopping=False,
                random_state=0,
            )
            with one_thread(len(columns)):
                model.fit(columns[train], known[train])
                found = _predicted(model, columns, classes)
            own = found[val, 0] - known[val] if numbers else found[val, known[val]]
            right = 0.0 if numbers else float((found[val].argmax(axis=1) == known[val]).mean())
            tried.append((right, -float(np.square(own).sum()) if numbers else float(own.sum()), found))
        return max(tried, key=lambda one: one[:2])[2]


def _predicted(model: Any, columns: Floats, classes: int) -> Floats:
    """Return numbers `[nodes, 1]`, or log-probabilities; of classes without training nodes `FLOOR`."""
    if not classes:
        return np.asarray(model.predict(columns), dtype=np.float32)[:, None]
    p = np.zeros((len(columns), classes), dtype=np.float32)
    p[:, model.classes_] = model.predict_proba(columns)
    return np.asarray(np.log(np.maximum(p, FLOOR)))


@dataclass(frozen=True)
class TypedNetwork(TypedSystem):
    """Message passing over all types, trained on the training nodes of one.

    The features of a type, or learned vectors for a type without, are projected to a common width; layers
    follow, each with ReLU and dropout, and a linear classifier. Every relation is walked both ways.

    Attributes:
        width, layers, dropout: of the network.
        learning_rate, weight_decay: of Adam.
        epochs: at most.
        patience: training stops after this many epochs without a better score on the validation nodes.
    """

    width: int = 64
    layers: int = 2
    dropout: float = 0.5
    learning_rate: float = 0.005
    weight_decay: float = 1e-3
    epochs: int = 200
    patience: int = 50

    @abstractmethod
    def convolution(self, typed: Edges) -> nn.Module:
        """Return a layer from a dictionary of rows by type to another."""

    def fit(
        self,
        graph: RelationalGraph,
        type_name: str,
        labels: Tensor,
        train_mask: Tensor,
        val_mask: Tensor,
        seed: int,
    ) -> Tensor:
        """Return the log-probabilities of all nodes for each split."""
        edges, classes = Edges.of(graph, labels.device), int(labels.max()) + 1
        features = {
            name: table.nodes if rows is None else Features(_tensor(rows), labels.device)
            for name, table in graph.types.items()
            for rows in [scaled_rows(table)]
        }
        found = []
        for split in range(train_mask.shape[1]):
            train, val = ((one[:, split] & (labels >= 0)) for one in (train_mask, val_mask))
            with forked_rng(labels.device, seed):
                network = _Network(self, features, edges, type_name, classes).to(labels.device)
                found.append(self._train(network, labels, train, val))
        return torch.stack(found)

    def _train(self, network: nn.Module, labels: Tensor, train: Tensor, val: Tensor) -> Tensor:
        adam = torch.optim.Adam(network.parameters(), self.learning_rate, weight_decay=self.weight_decay)
        share = (val / val.sum().clamp_min(1))[:, None]
        best = BestEpochs(labels, share, self.patience)
        for epoch in range(self.epochs):
            network.train()
            minimize(functional.cross_entropy(network()[train], labels[train]), adam)
            network.eval()
            with torch.no_grad():
                best.update(network().log_softmax(dim=-1)[:, None], epoch)
            if best.finished(epoch):
                break
        (model,) = best.models()
        return model.scores


def _tensor(rows: Any) -> Tensor:
    sparse = bool(sp.issparse(rows))
    return torch_features(rows.sorted_indices()) if sparse else torch.from_numpy(rows)


class Edges(NamedTuple):
    """The links of a graph in both directions.

    Attributes:
        sizes: number of nodes of each type.
        links: by type at the start, name of the relation, and type at the end: int64 `[2, links]`.
    """

    sizes: dict[str, int]
    links: dict[tuple[str, str, str], Tensor]

    @classmethod
    def of(cls, graph: RelationalGraph, device: torch.device | str = "cpu") -> Edges:
        """Return the links of a graph, named by their position."""
        sizes = {name: table.nodes for name, table in graph.types.items()}
        links = {}
        for at, one in enumerate(graph.relations):
            ends = torch.from_numpy(one.ends).to(device)
            links[one.source, f"{at}", one.target] = ends
            links[one.target, f"{at} reversed", one.source] = ends.flip(0)
        return cls(sizes, links)


class _Network(nn.Module):
    def __init__(
        self,
        settings: TypedNetwork,
        features: Mapping[str, Features | int],
        edges: Edges,
        type_name: str,
        classes: int,
    ) -> None:
        super().__init__()
        self.features, self.wanted, self.drop = features, type_name, settings.dropout
        self.names = list(features)
        sizes = [one if isinstance(one, int) else one.shape[1] for one in features.values()]
        weights = [nn.init.xavier_uniform_(torch.empty(size, settings.width)) for size in sizes]
        self.weights = nn.ParameterList([nn.Parameter(one) for one in weights])
        self.biases = nn.ParameterList([nn.Parameter(torch.zeros(settings.width)) for _ in sizes])
        self.layers = nn.ModuleList([settings.convolution(edges) for _ in range(settings.layers)])
        self.last = nn.Linear(settings.width, classes)

    def forward(self) -> Tensor:
        """Return the logits of the classified type."""
        hidden = {}
        for name, weight, bias in zip(self.names, self.weights, self.biases, strict=True):
            one = self.features[name]
            hidden[name] = self._dropped((weight if isinstance(one, int) else one @ weight) + bias)
        for layer in self.layers:
            hidden = {name: self._dropped(rows) for name, rows in layer(hidden).items()}
        return self.last(hidden[self.wanted])

    def _dropped(self, rows: Tensor) -> Tensor:
        return functional.dropout(rows.relu(), self.drop, self.training)


@dataclass(frozen=True)
class RGCN(TypedNetwork):
    """Schlichtkrull et al., Modeling Relational Data with Graph Convolutional Networks, ESWC 2018."""

    def convolution(self, typed: Edges) -> nn.Module:
        return RelationalConvolution(self.width, typed)


class RelationalConvolution(nn.Module):
    r"""One R-GCN layer, over the nodes of all types.

    .. math:: h'_v = W_0 h_v + \sum_r \frac1{|N_r(v)|} \sum_{u \in N_r(v)} W_r h_u + b
    """

    def __init__(self, width: int, edges: Edges) -> None:
        from torch_geometric.nn import RGCNConv

        super().__init__()
        self.sizes = edges.sizes
        first = dict(zip(edges.sizes, accumulate(edges.sizes.values(), initial=0), strict=False))
        shifted = [
            links + links.new_tensor([[first[source]], [first[target]]])
            for (source, _, target), links in edges.links.items()
        ]
        self.links = torch.cat(shifted, dim=1)
        kinds = [torch.full_like(links[0], kind) for kind, links in enumerate(shifted)]
        self.kinds = torch.cat(kinds)
        self.layer = RGCNConv(width, width, len(shifted), aggr="mean")

    def forward(self, hidden: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the rows of the next layer by type."""
        rows = self.layer(torch.cat([hidden[name] for name in self.sizes]), self.links, self.kinds)
        return dict(zip(self.sizes, torch.split(rows, list(self.sizes.values())), strict=True))


@dataclass(frozen=True)
class HGT(TypedNetwork):
    """Hu et al., Heterogeneous Graph Transformer, WWW 2020."""

    heads: int = 4

    def convolution(self, typed: Edges) -> nn.Module:
        return TransformerConvolution(self.width, self.heads, typed)


class TransformerConvolution(nn.Module):
    r"""One HGT layer: attention over the links of all relations that end at a node.

    For a link of relation r from u to v, of types σ and τ, and each head of width d, with
    :math:`a_{uv} = \mu_r (K_\sigma h_u A_r)^\top (Q_\tau h_v) / \sqrt d` and
    :math:`m_u = V_\sigma h_u M_r`:

    .. math:: h'_v = \beta_\tau W_\tau\, \mathrm{GELU}\Big(\sum_u \mathrm{softmax}_u(a_{uv})\, m_u\Big)
        + (1 - \beta_\tau) h_v
    """

    def __init__(self, width: int, heads: int, edges: Edges) -> None:
        from torch_geometric.nn import HGTConv

        super().__init__()
        self.links = edges.links
        self.layer = HGTConv(width, width, (list(edges.sizes), list(edges.links)), heads)

    def forward(self, hidden: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the rows of the next layer by type; those of a type without links do not change."""
        found = self.layer(dict(hidden), self.links)
        return {name: found.get(name, rows) for name, rows in hidden.items()}
