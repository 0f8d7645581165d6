"""The joint structural encoder as a PyG-style module: `x` and `edge_index` in, embeddings out."""

from __future__ import annotations

import weakref
import zlib
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from h3gnn.encoder.features import FeatureMatrix
from h3gnn.encoder.noise import SequentialNoise
from h3gnn.encoder.sparse import csr_tensor
from h3gnn.encoder.stack import EncoderStack
from h3gnn.encoder.support import Support, build_support
from h3gnn.encoder.tokens import whole_graph

T = TypeVar("T")
STACK_OPTIONS = ("models", "entries", "side_by_side", "fuse_in_bfloat16")


class JointEncoder(nn.Module):
    r"""Joint structural node encoding for your own training loop; `EncoderStack` has the equations.

    Edge weights are the entries of Ã. With `num_edges`, each edge of one graph has a learnable weight that
    starts there, and batches identify their edges by `e_id`, as in PyG's loaders. Ã is normalised within the
    given graph: in a batch, nodes at the border have fewer neighbours. Seeds whose batch contains all
    neighbours within `hops + 1` hops are encoded exactly as in the whole graph.

    The support of an `edge_index` is cached for the next call with the same tensor, until that is freed or
    changed in place (changes through `.data` or NumPy are not noticed).

    Args:
        in_channels: number of features d.
        channels: width C of a token.
        num_edges: number of edges with learned weights; None learns none.
        undirected: send messages both ways along each edge; a learned weight is used for both directions,
            unless the graph lists the reverse edge too.
        self_loops: add a self-loop to each node.
        options: `hops`, `min_layers`, `hidden_channels`, `heads`, `norm`, `activation`, `fusion`, `output`,
            `batch_norm`, `token_dropout`, `attention_dropout`, `mask_token`, `edge_weights` (`"fixed"` by
            default, or `"computed"`), as in `EncoderStack`.

    Shapes:
        x `[nodes, d]` (dense or CSR), edge_index `[2, edges]`, edge_weight `[edges]`, mask bool `[nodes]`;
        output `[nodes, D]`.
    """

    def __init__(
        self,
        in_channels: int,
        channels: int,
        *,
        num_edges: int | None = None,
        undirected: bool = True,
        self_loops: bool = True,
        **options: Any,
    ) -> None:
        super().__init__()
        for reserved in STACK_OPTIONS:
            if reserved in options:
                raise TypeError(f"{reserved} is an option of a stack of models, not of one encoder")
        if (kind := options.setdefault("edge_weights", "fixed")) in ("free", "learned"):
            raise ValueError(f"learned weights belong to edges of one graph: give num_edges, not {kind!r}")
        _check_numbers({"in_channels": in_channels, "channels": channels, **options})
        self.in_channels, self.undirected, self.self_loops = in_channels, undirected, self_loops
        self.stack = EncoderStack(in_channels, channels, 0, models=1, **options)
        self.stack.edges.requires_grad_(False)  # empty: `edge_logit` is learned instead
        self.edge_logit = None if num_edges is None else nn.Parameter(torch.empty(num_edges))
        self._graph: _Cache[_Graph] = _Cache()
        self._features: _Cache[FeatureMatrix] = _Cache()
        self.reset_parameters()

    @property
    def out_channels(self) -> int:
        """Width D of an embedding."""
        return self.stack.out_channels

    def reset_parameters(self) -> None:
        """Reinitialise from torch's global generator; learned edge weights start at their entry of Ã."""
        seed = int(torch.randint(2**62, ()))
        generator = torch.Generator(self.stack.device).manual_seed(seed)
        self.stack.reset_parameters([generator], torch.empty(0))
        if self.edge_logit is not None:
            nn.init.zeros_(self.edge_logit)

    def forward(
        self,
        x: Tensor,
        edge_index: Tensor,
        edge_weight: Tensor | None = None,
        *,
        mask: Tensor | None = None,
        e_id: Tensor | None = None,
    ) -> Tensor:
        """Encode all nodes: `[nodes, D]`.

        Args:
            x: features.
            edge_index: source above target.
            edge_weight: positive weights in place of the ones in A.
            mask: nodes whose features are replaced by the learnable mask token.
            e_id: the number of each edge among the `num_edges`; by default all edges in order.
        """
        if x.dim() != 2 or x.shape[1] != self.in_channels:
            raise ValueError(f"x must be [nodes, {self.in_channels}], not {list(x.shape)}")
        tensors = [edge_index] if edge_weight is None else [edge_index, edge_weight]
        key = (x.shape[0], x.device, x.dtype)
        graph = self._graph.get(tensors, key, lambda: self._prepare(edge_index, edge_weight, x))
        features = FeatureMatrix.as_stored(x)
        if x.layout == torch.sparse_csr:  # its transpose is worth caching
            features = self._features.get([x], (), lambda: _shared_values(x))
        part = whole_graph(features, graph.support, self.stack.hops)
        weights = self._edge_weights(graph, edge_index.shape[1], e_id)
        noise = SequentialNoise([_default_generator(x.device)]) if self.training else None
        masks = None if mask is None else mask[None]
        tokens = self.stack.tokens(self.stack.project(part), part, weights, masks, noise)
        return self.stack.fuse(tokens, self.stack.attention_keep(part.seeds, noise)).squeeze(0)

    def _edge_weights(self, graph: _Graph, edges: int, e_id: Tensor | None) -> Tensor:
        r"""Return :math:`2\,\sigma(w_e)\,\tilde A_{uv}` for edges, :math:`\tilde A_{vv}` for added loops."""
        if self.edge_logit is None:
            return graph.start[None]
        if edges != len(self.edge_logit if e_id is None else e_id):
            raise ValueError(
                f"{edges} edges, but {len(self.edge_logit)} learned weights: "
                "give e_id, the number of each edge in the whole graph"
            )
        logit = self.edge_logit if e_id is None else self.edge_logit[e_id]
        factor = torch.cat([2 * torch.sigmoid(logit), logit.new_ones(1)])
        return (factor.index_select(0, graph.edge_of) * graph.start)[None]

    def _prepare(self, edge_index: Tensor, edge_weight: Tensor | None, x: Tensor) -> _Graph:
        _check_edges(edge_index, edge_weight, x.shape[0])
        edge_index = edge_index.to(x.device, torch.int64)
        options = {"undirected": self.undirected, "self_loops": self.self_loops}
        support = build_support(edge_index, x.shape[0], edge_weight=edge_weight, **options)
        support = support.to(x.device, x.dtype)
        source, target = edge_index
        directions = [(source, target), (target, source)] if self.undirected else [(target, source)]
        return _Graph(support, support.normalized(None), _edge_of(support, directions))


class _Graph(NamedTuple):
    """A support, the entries of Ã, and the edge of each entry (the number of edges for added loops)."""

    support: Support
    start: Tensor
    edge_of: Tensor


def _edge_of(support: Support, directions: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """Return the edge that each entry of a support comes from, or the number of edges.

    `directions` has receiver and sender of each edge. If an entry comes from several edges, the later
    direction counts, and within it the first edge.
    """
    entries = support.pattern.rows * support.nodes + support.pattern.cols
    edges = len(directions[0][0])
    found = torch.full_like(entries, edges)
    for receiver, sender in directions:
        keys = receiver * support.nodes + sender
        at = torch.searchsorted(entries, keys)
        here = torch.cat([entries, entries.new_full((1,), -1)])[at] == keys
        each = torch.arange(edges, device=keys.device)
        first = torch.full_like(entries, edges).scatter_reduce_(0, at[here], each[here], "amin")
        found = torch.where(first < edges, first, found)
    return found


def _shared_values(x: Tensor) -> FeatureMatrix:
    """Return CSR features that share the values of a tensor without keeping it alive."""
    size = (x.shape[0], x.shape[1])
    return FeatureMatrix(csr_tensor(x.crow_indices(), x.col_indices(), x.values(), size), "csr")


class _Cache(Generic[T]):
    """The last value computed from some tensors, while these exist and are unchanged.

    Changes through an array that shares the memory of a tensor on a CPU are noticed by its checksum.
    """

    def __init__(self) -> None:
        self._key: Hashable = None
        self._tensors: list[weakref.ref[Tensor]] = []
        self._value: T | None = None

    def __reduce__(self) -> tuple[type[_Cache[T]], tuple[()]]:
        """A copied or unpickled module starts with an empty cache."""
        return type(self), ()

    def get(self, tensors: Sequence[Tensor], key: tuple[Hashable, ...], compute: Callable[[], T]) -> T:
        """Return the value of the same tensors and key, or compute it."""
        if any(tensor.requires_grad or tensor.is_inference() for tensor in tensors):
            return compute()  # autograd graphs serve once, and inference tensors have no version
        key = (*key, *((tensor._version, tensor.shape, _checksum(tensor)) for tensor in tensors))
        same = [id(kept()) for kept in self._tensors] == [id(tensor) for tensor in tensors]
        if self._value is None or not same or key != self._key:
            with torch.inference_mode(False):  # the value may be used in training later
                self._key, self._value = key, compute()
            self._tensors = [weakref.ref(tensor, self._clear) for tensor in tensors]
        return self._value

    def _clear(self, freed: weakref.ref[Tensor]) -> None:
        if any(kept is freed for kept in self._tensors):
            self._key, self._value, self._tensors = None, None, []


def _checksum(tensor: Tensor) -> int:
    """Return a checksum of the values of a tensor on a CPU, else 0."""
    if tensor.device.type != "cpu":
        return 0
    parts = [tensor]
    if tensor.layout == torch.sparse_csr:
        parts = [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    found = 0
    for part in parts:
        plain = part.detach().float() if part.dtype == torch.bfloat16 else part.detach()
        found = zlib.crc32(plain.numpy().tobytes(), found)
    return found


def _check_numbers(options: dict[str, Any]) -> None:
    for name in ("in_channels", "channels", "hops", "min_layers", "heads", "hidden_channels"):
        given = options.get(name)
        if given is not None and given < 1:
            raise ValueError(f"{name} must be at least 1, not {given!r}")
    for name in ("token_dropout", "attention_dropout"):
        if not 0 <= options.get(name, 0.0) < 1:
            raise ValueError(f"{name} must be at least 0 and less than 1, not {options[name]!r}")


def _check_edges(edge_index: Tensor, edge_weight: Tensor | None, nodes: int) -> None:
    if edge_index.dim() != 2 or edge_index.shape[0] != 2 or edge_index.is_floating_point():
        raise ValueError(
            f"edge_index must be integers [2, edges], not {edge_index.dtype} {list(edge_index.shape)}"
        )
    if edge_index.numel() and not 0 <= int(edge_index.min()) <= int(edge_index.max()) < nodes:
        raise ValueError(
            f"edge_index has nodes from {int(edge_index.min())} to {int(edge_index.max())}, "
            f"but x has rows 0 to {nodes - 1}"
        )
    if edge_weight is None:
        return
    if edge_weight.shape != edge_index.shape[1:]:
        raise ValueError(f"edge_weight must be [{edge_index.shape[1]}], not {list(edge_weight.shape)}")
    if not bool((edge_weight > 0).all()):
        raise ValueError("edge_weight must be positive")


def _default_generator(device: torch.device) -> torch.Generator:
    """Return the generator that `torch.manual_seed` seeds."""
    if device.type == "cuda":
        generator: torch.Generator = torch.cuda.default_generators[device.index]
        return generator
    return torch.default_generator
