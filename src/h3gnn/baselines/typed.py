"""Systems for graphs with several types of nodes, which classify the nodes of one type.

`PathMeans` and `JoinedBoosting` need no network: means of features along paths of relations, and boosting
on columns joined over the links. `RGCN` and `HGT` are message passing over all types, by the layers of PyG.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import accumulate, product
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
from h3gnn.graphs.relational import NodeTable, RelationalGraph, Step
from h3gnn.graphs.scaling import fit_scaler, scipy_features, torch_features
from h3gnn.resources import one_thread

Floats = npt.NDArray[np.float32]
Path = tuple[Step, ...]

MOST_PATHS = 64
"""Shorter paths come first."""
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


def scaled(table: NodeTable) -> Tensor:
    """Return the features of a type, scaled by `fit_scaler`, but zeros and ones to rows of one length."""
    features = (
        torch_features(table.features) if sp.issparse(table.features) else torch.from_numpy(table.features)
    )
    kind = fit_scaler(features).kind
    return fit_scaler(features, "rows" if kind == "none" else kind)(features)


def mean_step(graph: RelationalGraph, step: Step) -> sp.csr_array:
    """Return the weights of the mean over the nodes at the end of a step; a row without links is 0."""
    matrix = graph.matrix(step)
    total = np.asarray(matrix.sum(axis=1))
    return sp.csr_array(sp.diags_array(1 / np.where(total > 0, total, 1)) @ matrix).astype(np.float32)


def paths_from(graph: RelationalGraph, start: str, length: int) -> Iterator[Path]:
    """Yield all paths of at most `length` steps from a type, short ones first."""
    found: list[Path] = [()]
    for _ in range(length):
        found = [(*path, step) for path in found for step in graph.steps[path[-1].end if path else start]]
        yield from found


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
        rows = {
            name: _scipy(scaled(table))
            if table.features.shape[1]
            else sp.eye_array(table.nodes, format="csr", dtype=np.float32)
            for name, table in graph.types.items()
        }
        step_matrices: dict[tuple[int, bool], Any] = {}

        def matrix(step: Step) -> Any:
            key = id(step.relation), step.forward
            if key not in step_matrices:
                step_matrices[key] = mean_step(graph, step)
            return step_matrices[key]

        paths: list[Path] = [()] if graph.type(type_name).features.shape[1] else []
        for _, path in zip(range(MOST_PATHS), paths_from(graph, type_name, self.length), strict=False):
            paths.append(path)
        blocks = []
        for path in paths:
            chain = [matrix(step) for step in path] + [rows[path[-1].end if path else type_name]]
            blocks.append(self._block(chain))
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


def _scipy(features: Tensor) -> Any:
    return scipy_features(features) if features.layout == torch.sparse_csr else features.numpy()


@dataclass(frozen=True)
class JoinedBoosting(TypedSystem):
    """Histogram gradient boosting on a type's own columns and those joined over one and two links.

    A link adds the number of nodes at its end and the means of their columns. Where a type has more than
    `components` columns, its leading principal directions take their place. Validation nodes choose among
    the leaves and rows per leaf, as for boosting on one table.
    """

    has_chance = False

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
    ) -> Tensor:
        """Return the log-probabilities or numbers of all nodes for each split."""
        columns, known = self.columns(graph, type_name), labels.numpy()
        masks = (train_mask.t().numpy(), val_mask.t().numpy())
        return torch.from_numpy(
            np.stack([self._fit(columns, known, *one) for one in zip(*masks, strict=True)])
        )

    def columns(self, graph: RelationalGraph, type_name: str) -> Floats:
        """Return own and joined columns; a mean over no node is NaN."""
        own = {name: self._own(table) for name, table in graph.types.items()}
        parts = [own[type_name]]
        for path in paths_from(graph, type_name, 2):
            count, total = np.ones((graph.type(path[-1].end).nodes, 1), np.float32), own[path[-1].end]
            for step in reversed(path):
                links = graph.matrix(step)
                links.data[:] = 1
                count, total = links @ count, links @ total
            with np.errstate(invalid="ignore"):
                parts += [count, total / count]
        return np.hstack(parts)

    def _own(self, table: NodeTable) -> Floats:
        if not table.features.shape[1]:
            return np.eye(table.nodes, table.nodes if table.nodes <= self.components else 0, dtype=np.float32)
        if table.features.shape[1] <= self.components:
            sparse = sp.issparse(table.features)
            return np.asarray(table.features.todense() if sparse else table.features, dtype=np.float32)
        rows = _scipy(scaled(table))
        shape = (table.nodes, table.features.shape[1])
        return principal(lambda w: rows @ w, lambda w: rows.T @ w, shape, self.components)

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
        edges, classes = Edges.of(graph), int(labels.max()) + 1
        features = {
            name: Features(scaled(table), labels.device) if table.features.shape[1] else table.nodes
            for name, table in graph.types.items()
        }
        found = []
        for split in range(train_mask.shape[1]):
            train, val = ((one[:, split] & (labels >= 0)) for one in (train_mask, val_mask))
            with forked_rng(labels.device, seed):
                network = _Network(self, features, edges, type_name, classes)
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


class Edges(NamedTuple):
    """The links of a graph in both directions.

    Attributes:
        sizes: number of nodes of each type.
        links: by type at the start, name of the relation, and type at the end: int64 `[2, links]`.
    """

    sizes: dict[str, int]
    links: dict[tuple[str, str, str], Tensor]

    @classmethod
    def of(cls, graph: RelationalGraph) -> Edges:
        """Return the links of a graph, named by their position."""
        sizes = {name: table.nodes for name, table in graph.types.items()}
        links = {}
        for at, one in enumerate(graph.relations):
            ends = torch.from_numpy(one.ends)
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
            links + torch.tensor([[first[source]], [first[target]]])
            for (source, _, target), links in edges.links.items()
        ]
        counts = torch.tensor([links.shape[1] for links in shifted], dtype=torch.int64)
        self.links = torch.cat(shifted, dim=1)
        self.kinds = torch.repeat_interleave(torch.arange(len(shifted)), counts)
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
