"""What is asked about a database: a node type, a column of a table, or a condition on its values."""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import numpy as np
import numpy.typing as npt

from h3gnn.errors import GraphError, InputError, shortened
from h3gnn.tables.database import Column
from h3gnn.tables.schema import Schema

Labels = tuple[npt.NDArray[Any], tuple[str, ...]]
"""Classes, -1 where unknown, and their names; or numbers, NaN where unknown, and no names."""
CONDITION = re.compile(r"(?P<column>.*?)\s*(?P<sign><=|>=|=|<|>)\s*(?P<value>.+)")
SIGNS = {"<": operator.lt, ">": operator.gt, "<=": operator.le, ">=": operator.ge}


def types_of(schema: Schema) -> tuple[str, ...]:
    """Return the node types: tables, and columns whose values are nodes."""
    values = (kind for table in schema.tables.values() for kind in table.nodes)
    return tuple(dict.fromkeys((*schema.tables, *values)))


def find_type(schema: Schema, name: str) -> str:
    """Return the node type of a name, which may differ in case."""
    types = types_of(schema)
    found = [one for one in types if one == name] or [one for one in types if one.lower() == name.lower()]
    if len(found) == 1:
        return found[0]
    near = get_close_matches(name.lower(), [one.lower() for one in types], 1, cutoff=0.7)
    meant = next((f"; did you mean {one}?" for one in types if one.lower() in near), "")
    for at, question in enumerate(schema.questions, 1):
        if question.kind and question.kind.lower() == name.lower():
            meant = f"; question {at} of the schema proposes it: accept it with --accept {at}"
    message = f"there is no table or node type {name!r}; there are {shortened(types, 16)}{meant}"
    raise GraphError(message, code="type-unknown")


@dataclass(frozen=True)
class Predicted:
    """A column that is predicted, or a condition on it.

    Attributes:
        table, column: the table and its column.
        sign, value: of a condition, such as ">" and "0", or "=" and "B,D"; "" without one.
    """

    table: str
    column: str
    sign: str = ""
    value: str = ""

    @classmethod
    def parse(cls, text: str, tables: Mapping[str, Any]) -> Predicted:
        """Read `loan.status`, `loan.status=B,D` or `result.points>0`."""
        condition = CONDITION.fullmatch(text)
        name, sign, value = (text, "", "") if condition is None else condition.groups()
        column = Column.parse(name, tables)
        return cls(column.table, column.name, sign, value)

    @property
    def title(self) -> str:
        """The column, with the condition."""
        return f"{self.column}{self.sign}{self.value}"

    def labels(self, graph: Any) -> Labels:
        """Return the labels of a graph's nodes, or the classes no and yes of a condition."""
        labels, names = labels_of(graph)
        if not self.sign:
            return labels, names
        known = labels >= 0 if names else ~np.isnan(labels)
        if self.sign == "=":
            met = np.isin(labels, self._wanted(names))
        else:
            with np.errstate(invalid="ignore"):
                met = SIGNS[self.sign](self._numbers(labels, names), self._number(self.value))
        return np.where(known, met.astype(np.int64), -1), (f"not {self.title}", self.title)

    def _wanted(self, names: tuple[str, ...]) -> list[Any]:
        """Return the values after the sign =, as they are in the labels."""
        wanted = [one.strip() for one in self.value.split(",")]
        if not names:
            return [self._number(one) for one in wanted]
        if unknown := [one for one in wanted if one not in names]:
            message = f"{self.table}.{self.column} has no value {unknown[0]!r}; it has {shortened(names, 12)}"
            raise InputError(message, code="class-unknown")
        return [names.index(one) for one in wanted]

    def _number(self, text: str) -> float:
        try:
            return float(text)
        except ValueError:
            raise InputError(f"{self.title}: {text!r} is not a number", code="value-invalid") from None

    def _numbers(self, labels: npt.NDArray[Any], names: tuple[str, ...]) -> npt.NDArray[np.float64]:
        try:
            return labels if not names else np.array([*map(float, names), np.nan])[labels]
        except ValueError:
            message = f"{self.title}: the values of {self.column} are words ({shortened(names, 4)}): use ="
            raise InputError(message, code="value-invalid") from None


def labels_of(graph: Any) -> Labels:
    """Return the classes or numbers of a graph's nodes."""
    if graph.targets is not None:
        return graph.targets.numpy(), ()
    if graph.labels is None:
        raise InputError("this model was not fitted to predict a column", code="no-labels")
    return graph.labels.numpy(), graph.class_names
