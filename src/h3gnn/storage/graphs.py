"""Store graphs and the plans of their tables, and validate them when they are loaded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from h3gnn.errors import ModelFolderError, named
from h3gnn.graphs.graph import MASKS, Graph
from h3gnn.graphs.link_columns import STORED_LINKS, LinkColumns, LinkPlan
from h3gnn.graphs.provenance import STORED_EDGES, STORED_PROVENANCE, EdgePlan, Provenance
from h3gnn.graphs.scaling import csr_features
from h3gnn.graphs.type_view import PathColumns
from h3gnn.ondisk.mapped import MappedGraph, open_mapped
from h3gnn.storage import schema
from h3gnn.storage.atomic import local
from h3gnn.storage.schema import DictOf, FieldError, Integer, Kind, ListOf, Maybe, Number, OneOf, Record, Text
from h3gnn.storage.tensors import Spec, check_range, check_tensor, check_tensors, ids_of, text_of
from h3gnn.tables.encoders import CYCLES, ENCODERS, TEXT_BUCKETS
from h3gnn.tables.infer import FORMS, KINDS, LEAK
from h3gnn.tables.plan import SEEN, TENSOR_PREFIX, UNCHANGED, TablePlan

MEASURED = Number(any_float=True)  # the spread of huge numbers is infinite
SEEN_BY_ENCODER = {"unreadable": Integer(0), "least": MEASURED, "most": MEASURED}
SEEN_BY_ENCODER |= {"texts": Integer(0), "unlike": Integer(0)}
COLUMN = Record(
    {
        **{"name": Text(), "kind": OneOf((*KINDS, LEAK)), "form": Text()},
        **{"why": Text(), "how": Text(), "said": bool},
        "encoder": OneOf(("", UNCHANGED, *ENCODERS)),
        "names": ListOf(Text()),
        "plain": DictOf(Any),
    },
    {SEEN: Record({"rows": Integer(0), "missing": Integer(0)}, SEEN_BY_ENCODER)},
)
PLAN = Record({"columns": ListOf(COLUMN)})
"""Schema of a plan; `check_plan` checks the state of each encoder."""

NUMBERS: dict[str, Kind] = {
    **{"fill": MEASURED, "mean": MEASURED, "scale": MEASURED},
    **{"log": bool, "gaps": bool},
}
WORDS: dict[str, Kind] = {"rare": bool, "gaps": bool}
VECTOR = {"mean": Spec(torch.float64, ("width",))}
TEXT = {
    "used": Spec(torch.int64, ("words",)),
    "weight": Spec(torch.float32, ("words",)),
    "directions": Spec(torch.float32, ("width", "words")),
}
STATES: dict[str, tuple[tuple[str, ...], dict[str, Kind], dict[str, Spec]]] = {
    "number": (("number",), NUMBERS, {}),
    "boolean": (("boolean",), NUMBERS, {}),
    "category": (("category",), {**WORDS, "kept": ListOf(Text())}, {}),
    "date": (("date",), {**NUMBERS, "cycles": ListOf(OneOf(tuple(CYCLES)), most=3)}, {}),
    "list": (("list",), {**WORDS, "kept": Maybe(ListOf(Text()))}, {}),
    "vector": (("list",), {"scale": MEASURED, "gaps": bool}, VECTOR),
    "text": (("text", "category"), {"form": OneOf(FORMS["text"]), "gaps": bool, "scale": MEASURED}, TEXT),
    "sentences": (("text",), {"folder": Text("[^\0]+"), "scale": MEASURED}, VECTOR),
}
"""By encoder: the kinds of columns that it encodes, and the schema of its values and arrays."""


def check_plan(stored: Mapping[str, Any], tensors: Mapping[str, Tensor], features: int) -> None:
    """Check a plan that matches the schema `PLAN`, its arrays, and the number of features."""
    left = dict(tensors)
    for at, column in enumerate(stored["columns"]):
        prefix = f"{TENSOR_PREFIX}{at}."
        own = {name: left.pop(name) for name in tensors if name.startswith(prefix)}
        _check_column(column, own, prefix, f"plan.columns[{at}]")
    check_tensors({}, left)
    made = sum(len(column["names"]) for column in stored["columns"])
    if made != features:
        raise FieldError("plan", f"has {made} features, but the graph has {features}")


def _check_column(column: Mapping[str, Any], own: Mapping[str, Tensor], prefix: str, where: str) -> None:
    encoder, names, state = column["encoder"], column["names"], column["plain"]
    known = {one: own[one] for one in own if one == prefix + SEEN and SEEN in column}
    check_tensors(dict.fromkeys(known, Spec(torch.int64, ("known",))), known)
    own = {name: own[name] for name in own if name not in known}
    if encoder in ("", UNCHANGED):
        check_tensors({}, own)
        if bool(names) != (encoder == UNCHANGED):
            raise FieldError(f"{where}.names", "must be empty for an unused column, and only then")
        return
    kinds, values, arrays = STATES[encoder]
    is_vector = column["kind"] == "list" and column["form"] == "vector"
    if column["kind"] not in kinds or is_vector != (encoder == "vector"):
        raise FieldError(f"{where}.encoder", f"is {encoder!r}, which does not fit the kind of the column")
    schema.check(Record(values), state, f"{where}.plain")
    if "scale" in state and not state["scale"] > 0:
        raise FieldError(f"{where}.plain.scale", f"must be positive, not {state['scale']}")
    check_tensors({prefix + name: spec for name, spec in arrays.items()}, own, {})
    if "used" in arrays:
        check_range(f"{prefix}used", own[f"{prefix}used"], 0, TEXT_BUCKETS)
    fitted = ENCODERS[encoder](**state, **{name: own[prefix + name].numpy() for name in arrays})
    expected = len(fitted.features(column["name"]))
    if len(names) != expected:
        raise FieldError(f"{where}.names", f"must have {expected} value(s), not {len(names)}")


STORED_PATHS = Record({"titles": ListOf(Text()), "widths": ListOf(Integer(1))})
OPTIONAL = ("edge_weight", "labels", "targets", "node_types", "relations", *MASKS)
GRAPH_DESCRIPTION = Record(
    {"provenance": STORED_PROVENANCE, "class_names": ListOf(Text())},
    {
        **{"feature_names": ListOf(Text()), "target_name": Text(), "type_names": ListOf(Text())},
        **{"plan": PLAN, "edge_plan": STORED_EDGES, "links": STORED_LINKS},
        **{"relation_names": ListOf(Text()), "paths": STORED_PATHS},
    },
)
"""Schema of the description of a graph."""
MAPPED = {"mapped": Spec(torch.uint8, ("path",))}
DENSE = {"features": Spec(torch.float32, ("nodes", "columns"))}
SPARSE = {
    "features.crow": Spec(torch.int64, ("nodes + 1",)),
    "features.col": Spec(torch.int64, ("stored",)),
    "features.values": Spec(torch.float32, ("stored",)),
}
PARTS = {
    "edge_index": Spec(torch.int64, (2, "edges")),
    "edge_weight": Spec(torch.float32, ("edges",)),
    "labels": Spec(torch.int64, ("nodes",)),
    "targets": Spec(torch.float64, ("nodes",), gaps=True),
    "node_types": Spec(torch.int16, ("nodes",)),
    **{name: Spec(torch.bool, ("nodes", "splits")) for name in MASKS},
    "node_ids": Spec(torch.uint8, ("ids",)),
    "link_columns": Spec(torch.float32, ("nodes", "link columns")),
    "relations": Spec(torch.bool, ("relations", "edges")),
    "path_columns": Spec(torch.float32, ("nodes", "path columns")),
}
"""Tensors of a graph; only edges and features are required."""


def graph_description(graph: Graph | MappedGraph) -> dict[str, Any]:
    """Return the description of a graph: provenance, classes, columns and their plan."""
    words = {"provenance": graph.provenance.as_dict(), "class_names": list(graph.class_names)}
    words |= {"feature_names": list(graph.feature_names)}
    words |= {"target_name": graph.target_name} if graph.target_name else {}
    words |= {"type_names": list(graph.type_names)} if graph.type_names else {}
    words |= {"relation_names": list(graph.relation_names)} if graph.relation_names else {}
    paths = graph.path_columns
    words |= {} if paths is None else {"paths": {"titles": [*paths.titles], "widths": [*paths.widths]}}
    links = None if graph.link_columns is None else graph.link_columns.plan
    plans = {"plan": graph.plan, "edge_plan": graph.edge_plan, "links": links}
    return words | {name: plan.as_dict() for name, plan in plans.items() if plan is not None}


def graph_tensors(graph: Graph | MappedGraph) -> dict[str, Tensor]:
    """Return the other parts of a graph as tensors; of a graph on disk only its folder."""
    if not graph.in_memory:
        place = named(str(graph.folder.resolve())).encode()
        return {"mapped": torch.frombuffer(bytearray(place), dtype=torch.uint8)}
    tensors = {"edge_index": graph.edge_index, "shape": torch.tensor(graph.features.shape)}
    if graph.features.layout == torch.sparse_csr:
        tensors |= {
            "features.crow": graph.features.crow_indices(),
            "features.col": graph.features.col_indices(),
            "features.values": graph.features.values(),
        }
    else:
        tensors["features"] = graph.features
    tensors |= {name: value for name in OPTIONAL if (value := getattr(graph, name)) is not None}
    if graph.link_columns is not None:
        tensors["link_columns"] = torch.from_numpy(np.ascontiguousarray(graph.link_columns.values))
    if graph.path_columns is not None:
        tensors["path_columns"] = torch.from_numpy(np.ascontiguousarray(graph.path_columns.values))
    if graph.has_ids:
        text = json.dumps(graph.node_ids.tolist()).encode()
        tensors["node_ids"] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    return tensors if graph.plan is None else {**tensors, **graph.plan.tensors()}


def graph_from_tensors(tensors: dict[str, Tensor], description: dict[str, Any]) -> Graph | MappedGraph:
    """Build and validate a graph from its tensors and description; a `FieldError` names an invalid part."""
    provenance = Provenance.from_dict(description["provenance"])
    if "mapped" in tensors:
        return _open_folder(tensors, provenance)
    features = _features(tensors)
    names, nodes = tuple(description["class_names"]), features.shape[0]
    stored, plan = description.get("plan"), None
    arrays = {name: one for name, one in tensors.items() if name.startswith(TENSOR_PREFIX)}
    check_plan(stored or {"columns": []}, arrays, features.shape[1] if stored else 0)
    if stored:
        plan = TablePlan.from_dict(stored, arrays)
    columns = tuple(description.get("feature_names", ()))  # missing in old models
    if columns and len(columns) != features.shape[1]:
        raise FieldError("feature_names", f"has {len(columns)} names for {features.shape[1]} features")
    _check_parts(tensors, nodes, len(names))
    types = tuple(description.get("type_names", ()))
    if "node_types" in tensors:
        check_range("node_types", tensors["node_types"], -1, len(types))
    edges = description.get("edge_plan")
    has_ids = "node_ids" in tensors
    ids = ids_of("node_ids", tensors["node_ids"], nodes) if has_ids else np.arange(nodes, dtype=np.int64)
    return Graph(
        features=features,
        edge_index=tensors["edge_index"],
        provenance=provenance,
        class_names=names,
        target_name=description.get("target_name", ""),
        feature_names=columns,
        type_names=types,
        node_ids=ids,
        has_ids=has_ids,
        plan=plan,
        edge_plan=None if edges is None else EdgePlan.from_dict(edges),
        link_columns=_link_columns(tensors, description.get("links")),
        relation_names=_relation_names(tensors, description.get("relation_names", [])),
        path_columns=_path_columns(tensors, description.get("paths")),
        **{name: tensors.get(name) for name in OPTIONAL},
    )


def _link_columns(tensors: dict[str, Tensor], stored: dict[str, Any] | None) -> LinkColumns | None:
    """Return the link columns, whose plan and values must have the same number of columns."""
    values = tensors.get("link_columns")
    if stored is None or values is None:
        if stored is not None or values is not None:
            raise FieldError("links", "has no values" if values is None else "is missing")
        return None
    plan = LinkPlan.from_dict(stored)
    if not len(plan.names) == len(plan.scales) == values.shape[1]:
        raise FieldError("links.scales", f"must have {len(plan.names)} value(s), not {len(plan.scales)}")
    return LinkColumns(values.numpy(), plan)


def _relation_names(tensors: dict[str, Tensor], stored: list[str]) -> tuple[str, ...]:
    """Return the names of the relations, one for each row of their tensor."""
    if len(stored) != (len(tensors["relations"]) if "relations" in tensors else 0):
        raise FieldError("relation_names", "must have one name for each relation")
    return tuple(stored)


def _path_columns(tensors: dict[str, Tensor], stored: dict[str, Any] | None) -> PathColumns | None:
    """Return the path columns, whose widths add up to their number."""
    values = tensors.get("path_columns")
    if stored is None or values is None:
        if stored is not None or values is not None:
            raise FieldError("paths", "has no values" if values is None else "is missing")
        return None
    if len(stored["titles"]) != len(stored["widths"]) or sum(stored["widths"]) != values.shape[1]:
        raise FieldError("paths.widths", "do not fit the titles or the columns")
    features = tensors.get("features")
    alone = features is not None and torch.equal(features[:, : values.shape[1]], values)
    return PathColumns(values.numpy(), tuple(stored["titles"]), tuple(stored["widths"]), alone)


def _open_folder(tensors: dict[str, Tensor], provenance: Provenance) -> MappedGraph:
    check_tensors(MAPPED, tensors)
    place = text_of("mapped", tensors["mapped"])
    if not place or "\0" in place:
        raise FieldError("mapped", "is not a path")
    mapped = open_mapped(local(place))
    if provenance.sha256 not in (mapped.provenance.sha256, mapped.unlabelled):  # labels may be given later
        raise ModelFolderError(
            f"{mapped.folder} is not the graph of this model: prepare it again from the tables, labels "
            "included, that the model was fitted on, or fit a new model",
            code="other-graph",
        )
    return mapped


def _features(tensors: dict[str, Tensor]) -> Tensor:
    """Return the features, whose shape is the size of the graph."""
    check_tensor("shape", tensors.get("shape"), Spec(torch.int64, (2,)), {})
    rows, columns = tensors["shape"].tolist()
    sparse = "features" not in tensors
    sizes: dict[str, int] = {}
    for name, spec in (SPARSE if sparse else DENSE).items():
        check_tensor(name, tensors.get(name), spec, sizes)
    if sparse:
        sizes |= {"nodes": sizes["nodes + 1"] - 1, "columns": columns}
    if rows < 1 or columns < 1 or (sizes["nodes"], sizes["columns"]) != (rows, columns):
        raise FieldError("shape", f"is [{rows}, {columns}], unlike the features")
    if not sparse:
        return tensors["features"]
    crow, col, values = (tensors[f"features.{part}"] for part in ("crow", "col", "values"))
    check_range("features.col", col, 0, columns)
    if crow[0] != 0 or crow[-1] != len(col) or bool((crow[1:] < crow[:-1]).any()):
        raise FieldError("features.crow", "are not valid row pointers")
    return csr_features(crow, col, values, (rows, columns))


def _check_parts(tensors: dict[str, Tensor], nodes: int, classes: int) -> None:
    """Check everything but the features, as `check_graph` does for new graphs."""
    known = {"shape", *DENSE, *SPARSE}
    parts = {
        name: one for name, one in tensors.items() if name not in known and not name.startswith(TENSOR_PREFIX)
    }
    wanted = {name: spec for name, spec in PARTS.items() if name in parts or name == "edge_index"}
    if any(name in wanted for name in MASKS):
        wanted |= {name: PARTS[name] for name in MASKS}
    check_tensors(wanted, parts, {"nodes": nodes})
    edges = parts["edge_index"]
    check_range("edge_index", edges, 0, nodes)
    if bool((torch.diff(edges[1] * nodes + edges[0]) <= 0).any()):
        raise FieldError("edge_index", "is not sorted by target, or has duplicate edges")
    if "edge_weight" in parts and not bool((parts["edge_weight"] > 0).all()):
        raise FieldError("edge_weight", "has a weight that is not positive")
    if "labels" in parts:
        check_range("labels", parts["labels"], -1, classes)
    if "targets" in parts and "labels" in parts:
        raise FieldError("targets", "is there beside labels")
    if "train_mask" in parts and bool((torch.stack([parts[name].int() for name in MASKS]).sum(0) > 1).any()):
        raise FieldError("train_mask", "overlaps val_mask or test_mask")
