"""The joint structural encoder as an ordinary PyG module: `x` and `edge_index` in, embeddings out."""

from __future__ import annotations

import weakref
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

Made = TypeVar("Made")


class JointEncoder(nn.Module):
    r"""Joint structural node encoding (`EncoderStack` tells the equations), for your own loop and loss.

    Each edge weighs what it does in Ã; with `num_edges`, each edge of one graph has a learnable weight that
    starts there, and batches name their edges by `e_id`, as PyG's loaders do. Ã is that of the graph at hand:
    in a batch, nodes at its rim have fewer neighbours than in the whole graph. Seeds whose batch reaches
    `hops + 1` hops and leaves no neighbour out are encoded as in the whole graph.

    What is worked out from an `edge_index` is kept for the next call with the same tensor, while that lives
    and is not changed in place (a change through `.data` or NumPy goes unseen).

    Args:
        in_channels: number of features d.
        channels: width C of a token.
        num_edges: number of edges of the one graph whose edge weights are to be learned; None learns none.
        undirected: let messages flow both ways along each edge; a learned weight serves both, unless the
            graph lists the way back as an edge of its own.
        self_loops: let each node hear itself.
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
        for reserved in ("models", "entries", "side_by_side", "fuse_in_bfloat16"):
            if reserved in options:
                raise TypeError(f"{reserved} is an option of a stack of models, not of one encoder")
        if (kind := options.setdefault("edge_weights", "fixed")) in ("free", "learned"):
            raise ValueError(
                f'learned weights belong to the edges of one graph: give num_edges, not "{kind}"'
            )
        _check_numbers({"in_channels": in_channels, "channels": channels, **options})
        self.in_channels, self.undirected, self.self_loops = in_channels, undirected, self_loops
        self.stack = EncoderStack(in_channels, channels, 0, models=1, **options)
        self.stack.edges.requires_grad_(False)  # there are none: the edges' weights are worked out below
        self.edge_logit = None if num_edges is None else nn.Parameter(torch.empty(num_edges))
        self._flow: _Last[_Flow] = _Last()
        self._features: _Last[FeatureMatrix] = _Last()
        self.reset_parameters()

    @property
    def out_channels(self) -> int:
        """Width D of an embedding."""
        return self.stack.out_channels

    def reset_parameters(self) -> None:
        """Start anew from torch's global generator; learned edge weights start at their entry of Ã."""
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
            edge_index: `[2, edges]`, source above target.
            edge_weight: the data's own positive weights, which take the place of the ones in A.
            mask: the nodes whose features are replaced by the learnable mask token.
            e_id: which of `num_edges` each edge is; by default they are all there, in order.
        """
        if x.dim() != 2 or x.shape[1] != self.in_channels:
            raise ValueError(f"x must be [nodes, {self.in_channels}], not {list(x.shape)}")
        given = [edge_index] if edge_weight is None else [edge_index, edge_weight]
        flow = self._flow.of(
            given, (x.shape[0], x.device, x.dtype), lambda: self._find_flow(edge_index, edge_weight, x)
        )
        features = FeatureMatrix.as_stored(x)
        if x.layout == torch.sparse_csr:  # its transpose is worth keeping
            features = self._features.of([x], (), lambda: _over_same_values(x))
        part = whole_graph(features, flow.support, self.stack.hops)
        weights = self._edge_weights(flow, edge_index.shape[1], e_id)
        noise = SequentialNoise([_default_generator(x.device)]) if self.training else None
        tokens = self.stack.tokens(
            self.stack.project(part), part, weights, None if mask is None else mask[None], noise
        )
        return self.stack.fuse(tokens, self.stack.attention_keep(part.seeds, noise)).squeeze(0)

    def _edge_weights(self, flow: _Flow, edges: int, e_id: Tensor | None) -> Tensor:
        r"""Return :math:`2\,\sigma(w_e)\,\tilde A_{uv}` for edges, :math:`\tilde A_{vv}` for other loops."""
        if self.edge_logit is None:
            return flow.start[None]
        if edges != len(self.edge_logit if e_id is None else e_id):
            raise ValueError(
                f"{edges} edges, but {len(self.edge_logit)} learned weights: "
                "give e_id, the number of each edge in the whole graph"
            )
        logit = self.edge_logit if e_id is None else self.edge_logit[e_id]
        factor = torch.cat([2 * torch.sigmoid(logit), logit.new_ones(1)])
        return (factor.index_select(0, flow.edge_of) * flow.start)[None]

    def _find_flow(self, edge_index: Tensor, edge_weight: Tensor | None, x: Tensor) -> _Flow:
        nodes = x.shape[0]
        _check_edges(edge_index, edge_weight, nodes)
        edge_index = edge_index.to(x.device, torch.int64)
        support = build_support(
            edge_index,
            nodes,
            edge_weight=edge_weight,
            undirected=self.undirected,
            self_loops=self.self_loops,
        ).to(x.device, x.dtype)
        source, target = edge_index
        ways = [(source, target), (target, source)] if self.undirected else [(target, source)]
        return _Flow(support, support.normalized(None), _edge_of(support, ways))


class _Flow(NamedTuple):
    """How messages flow in one graph.

    Attributes:
        support: between which nodes.
        start: the entries of Ã.
        edge_of: which edge each of them is; the number of edges for a loop that is none of them.
    """

    support: Support
    start: Tensor
    edge_of: Tensor


def _edge_of(support: Support, ways: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """Return the edge that each entry of a support comes from, or the number of edges.

    Args:
        support: of the edges.
        ways: receiver and sender of each edge; where two edges meet in an entry, the later way counts, and
            among its edges the first.
    """
    places = support.pattern.rows * support.nodes + support.pattern.cols
    edges = len(ways[0][0])
    found = torch.full_like(places, edges)
    for receiver, sender in ways:
        keys = receiver * support.nodes + sender
        at = torch.searchsorted(places, keys)
        here = torch.cat([places, places.new_full((1,), -1)])[at] == keys
        each = torch.arange(edges, device=keys.device)
        first = torch.full_like(places, edges).scatter_reduce_(0, at[here], each[here], "amin")
        found = torch.where(first < edges, first, found)
    return found


def _over_same_values(x: Tensor) -> FeatureMatrix:
    """Return CSR features that share their values with a tensor, but do not keep it alive."""
    size = (x.shape[0], x.shape[1])
    return FeatureMatrix(csr_tensor(x.crow_indices(), x.col_indices(), x.values(), size), "csr")


class _Last(Generic[Made]):
    """The last thing that was made from some tensors, for as long as these live and are what they were."""

    def __init__(self) -> None:
        self._key: Hashable = None
        self._made_from: list[weakref.ref[Tensor]] = []
        self._made: Made | None = None

    def __reduce__(self) -> tuple[type[_Last[Made]], tuple[()]]:
        """A copy of a module, or one read from a file, begins with nothing."""
        return type(self), ()

    def of(self, tensors: Sequence[Tensor], key: tuple[Hashable, ...], make: Callable[[], Made]) -> Made:
        """Return what was made from the same tensors with the same key, or make it."""
        if any(tensor.requires_grad or tensor.is_inference() for tensor in tensors):
            return make()  # a graph of gradients serves once, and inference mode counts no changes
        key = (*key, *(tensor._version for tensor in tensors), *(tensor.shape for tensor in tensors))
        same = len(tensors) == len(self._made_from) and all(
            kept() is tensor for kept, tensor in zip(self._made_from, tensors, strict=True)
        )
        if self._made is None or not same or key != self._key:
            with torch.inference_mode(False):  # what is made now may be trained with later
                made = make()
            self._key, self._made = key, made
            self._made_from = [weakref.ref(tensor, self._forget) for tensor in tensors]
            return made
        return self._made

    def _forget(self, gone: weakref.ref[Tensor]) -> None:
        if any(kept is gone for kept in self._made_from):
            self._key, self._made, self._made_from = None, None, []


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
            f"edge_index must be whole numbers [2, edges], not {edge_index.dtype} {list(edge_index.shape)}"
        )
    if edge_index.numel() and not 0 <= int(edge_index.min()) <= int(edge_index.max()) < nodes:
        raise ValueError(
            f"edge_index names nodes from {int(edge_index.min())} to {int(edge_index.max())}, "
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
