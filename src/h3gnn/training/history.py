"""The training log as data, and the detection of a collapsed representation."""

from __future__ import annotations

import html
import warnings
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from h3gnn.errors import TrainingStopped
from h3gnn.resources import one_torch_thread
from h3gnn.storage.schema import FieldError

if TYPE_CHECKING:
    import pandas as pd

QUANTILES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Quantiles of the difficulty in the history."""
SAMPLE = 256
"""Maximum number of nodes, evenly spaced, on which the effective rank is measured."""
SHOWN = 10
"""Number of epochs that a notebook shows."""
MIN_RANK, MIN_SHARE = 2.0, 0.1
"""A representation has collapsed if its effective rank is below 2, or below a tenth of the initial rank."""


class History:
    """Loss and measurements of each epoch, for each model.

    `history["loss"]` is an array `[epochs, models]`, as is every column in `history.names`;
    `history.to_frame()` is a table. Effective rank, teacher distance and quantiles of the difficulty are
    measured every few epochs and are NaN in between. `history.engine` has device, precision, storage of the
    features and the number of models trained at once; `history.difficulty` is that of the last epoch,
    `[models, nodes]`, or None if not stored.
    """

    def __init__(
        self, columns: dict[str, npt.NDArray[Any]] | None = None, engine: dict[str, Any] | None = None
    ) -> None:
        self.columns: dict[str, npt.NDArray[Any]] = columns or {}
        self.engine: dict[str, Any] = engine or {}
        self.difficulty: Tensor | None = None
        self.stopped: TrainingStopped | None = None

    @property
    def names(self) -> list[str]:
        """Names of the columns."""
        return list(self.columns)

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    @property
    def completed(self) -> int:
        """Number of epochs that all models have completed."""
        return int(np.isfinite(self.columns["loss"]).all(axis=1).sum()) if self.columns else 0

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        return self.columns[name]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield a row for each epoch and model, so that `pd.DataFrame(history)` is a table."""
        for epoch in range(len(self)):
            for model in range(next(iter(self.columns.values())).shape[1]):
                own = {name: float(values[epoch, model]) for name, values in self.columns.items()}
                yield {"epoch": epoch, "model": model, **own}

    def to_frame(self) -> pd.DataFrame:
        """Return a table with a row for each epoch and model; NaN where nothing was measured."""
        import pandas as pd

        return pd.DataFrame(list(self), columns=["epoch", "model", *self.names])

    def __repr__(self) -> str:
        if not len(self):
            return "History(no epochs)"
        models = next(iter(self.columns.values())).shape[1]
        return f"History({len(self)} epochs, {models} models: {', '.join(self.names)})"

    def _repr_html_(self) -> str:
        """Show the mean over models of some epochs in a notebook."""
        if not len(self):
            return f"<p>{html.escape(repr(self))}</p>"
        means = self.to_frame().drop(columns="model").groupby("epoch").mean()
        some = np.unique(np.linspace(0, len(self) - 1, min(len(self), SHOWN)).round().astype(int))
        table = means.iloc[some].to_html(float_format="{:.4g}".format, na_rep="")
        return f"<p>{html.escape(repr(self))}; the mean over models</p>{table}"

    def last(self, name: str) -> npt.NDArray[Any]:
        """Return the last measured value of each model `[models]`."""
        at, values = self.measured(name)
        last: npt.NDArray[Any] = values[-1] if len(at) else self.columns[name][-1]
        return last

    def measured(self, name: str) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Return the epochs at which `name` was measured, and its values there `[epochs, models]`."""
        values = self.columns[name]
        at = np.flatnonzero(~np.isnan(values).all(axis=1))
        return at, values[at]

    def as_dict(self) -> dict[str, Any]:
        """Return plain lists for JSON, with None for missing measurements."""
        columns = {
            name: [[None if np.isnan(value) else float(value) for value in row] for row in values]
            for name, values in self.columns.items()
        }
        return {"engine": self.engine, "columns": columns}

    @classmethod
    def from_dict(cls, kept: dict[str, Any]) -> History:
        """Read what `as_dict` wrote."""
        columns = {name: np.array(rows, dtype=np.float64) for name, rows in kept["columns"].items()}
        return cls(columns, kept["engine"])

    @classmethod
    def side_by_side(cls, parts: Sequence[History]) -> History:
        """Join the histories of groups of models that were trained one after another."""
        names, epochs = dict.fromkeys(name for part in parts for name in part.columns), max(map(len, parts))

        def padded(part: History, name: str) -> npt.NDArray[Any]:
            """Return a column; models without a teacher lack some, and a stopped group lacks epochs."""
            missing = np.full(part["loss"].shape, np.nan)
            values = part.columns.get(name, missing)
            return np.pad(values, ((0, epochs - len(values)), (0, 0)), constant_values=np.nan)

        joined = cls({name: np.concatenate([padded(part, name) for part in parts], axis=1) for name in names})
        kept = [part.difficulty for part in parts if part.difficulty is not None]
        joined.difficulty = torch.cat(kept) if len(kept) == len(parts) else None
        return joined


class Recorder:
    """Collects one row per epoch on the device, and reads them back once at the end."""

    def __init__(self) -> None:
        self._rows: list[dict[str, Tensor]] = []
        self._checked = 0

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def names(self) -> list[str]:
        """Names of the columns so far, in order of appearance."""
        return list(dict.fromkeys(name for row in self._rows for name in row))

    def add(self, **values: Tensor) -> None:
        """Add an epoch's values, each `[models]`."""
        self._rows.append(values)

    def first_nonfinite(self) -> tuple[int, int] | None:
        """Return the first epoch, and a model, with a loss that is not finite; each epoch is checked once."""
        for epoch in range(self._checked, len(self)):
            loss = self._rows[epoch].get("loss")
            if loss is not None and not bool(loss.isfinite().all()):
                return epoch, int((~loss.isfinite()).nonzero()[0])
        self._checked = len(self)
        return None

    def latest(self, name: str) -> float:
        """Return the mean over models of the newest value, for a progress bar; NaN if there is none yet."""
        for row in reversed(self._rows):
            if name in row:
                return float(row[name].float().mean())
        return float("nan")

    def history(self, difficulty: Tensor | None = None) -> History:
        """Return the history, with the nodes' difficulty in the last epoch `[models, nodes]`."""
        history = History({name: self._column(name) for name in self.names})
        history.difficulty = None if difficulty is None or not len(self) else difficulty.detach().cpu()
        return history

    def newest(self) -> dict[str, list[float]]:
        """Return the values of the newest epoch, one per model."""
        return {name: values.tolist() for name, values in self._rows[-1].items()} if self._rows else {}

    def state(self) -> dict[str, Tensor]:
        """Return each column as two tensors: its values, and the epochs at which it was measured."""
        state = {}
        for name in self.names:
            at = [epoch for epoch, row in enumerate(self._rows) if name in row]
            state[name] = torch.stack([self._rows[epoch][name].double() for epoch in at]).cpu()
            state[f"{name}.epochs"] = torch.tensor(at)
        return state

    @classmethod
    def from_state(cls, state: dict[str, Tensor], names: Sequence[str]) -> Recorder:
        """Read the result of `state`; `names` gives the order."""
        recorder = cls()
        for name in names:
            for epoch, values in zip(state[f"{name}.epochs"].tolist(), state[name], strict=True):
                while len(recorder._rows) <= epoch:
                    recorder._rows.append({})
                recorder._rows[epoch][name] = values
        return recorder

    def _column(self, name: str) -> npt.NDArray[Any]:
        models = next(row[name] for row in self._rows if name in row).shape[0]
        missing = torch.full((models,), float("nan"), dtype=torch.float64)
        values = [row[name].to("cpu", torch.float64) if name in row else missing for row in self._rows]
        column: npt.NDArray[Any] = torch.stack(values).numpy()
        return column


def check_history(
    state: dict[str, Tensor], names: Sequence[str], models: int, epochs: int | None = None
) -> None:
    """Validate the result of `Recorder.state`; a `FieldError` names the invalid column."""
    if len(set(names)) < len(names) or {*names, *(f"{name}.epochs" for name in names)} != state.keys():
        raise FieldError("its history", "is incomplete, or its names differ from its columns")
    last = 0
    for name in names:
        at, values = state[f"{name}.epochs"], state[name]
        if at.dtype != torch.int64 or at.dim() != 1 or values.dtype != torch.float64:
            raise FieldError(f"history/{name}", "has the wrong type")
        if values.shape != (len(at), models):
            raise FieldError(f"history/{name}", f"has shape {list(values.shape)} for {len(at)} epoch(s)")
        if not len(at) or int(at[0]) < 0 or bool((at[1:] <= at[:-1]).any()):  # differences can overflow
            raise FieldError(f"history/{name}.epochs", "are not in ascending order")
        last = max(last, int(at[-1]) + 1)
    if last != (last if epochs is None else epochs) or last > max(map(len, state.values()), default=0):
        raise FieldError("its history", f"has {last} epochs instead of {epochs}")


def difficulty_quantiles(difficulty: Tensor) -> dict[str, Tensor]:
    """Return the quantiles of each model's difficulty `[models, nodes]`, by name."""
    ordered = difficulty.sort(dim=1).values
    last = ordered.shape[1] - 1
    return {f"difficulty_q{int(100 * q)}": ordered[:, round(q * last)] for q in QUANTILES}


class UnfinishedWarning(UserWarning):
    """A saved model was trained for fewer epochs than its settings say."""


class CollapseWarning(UserWarning):
    """The representation lost most of its dimensions in training."""


def effective_rank(embedding: Tensor) -> Tensor:
    r"""Return the effective rank of each model's embedding `[models, nodes, D]`.

    .. math:: \exp\Bigl(-\sum_i p_i \log p_i\Bigr), \qquad p_i = \sigma_i / \textstyle\sum_j \sigma_j

    over the singular values of the centred rows: 1 when all nodes lie on a line, up to min(nodes, D) when
    they spread evenly (Roy and Vetterli, 2007).
    """
    rows = embedding.double()
    rows = rows - rows.mean(dim=1, keepdim=True)
    finite = rows.isfinite().all(dim=2).all(dim=1)
    rows = torch.where(finite[:, None, None], rows, 0.0)
    gram = rows @ rows.mT if rows.shape[1] <= rows.shape[2] else rows.mT @ rows
    with one_torch_thread():
        squares = torch.linalg.eigvalsh(gram).clamp_min(0)
    singular = torch.where(squares > 1e-12 * squares.amax(dim=1, keepdim=True), squares, 0).sqrt()
    share = singular / singular.sum(dim=1, keepdim=True).clamp_min(torch.finfo(torch.double).tiny)
    entropy = torch.special.entr(share).sum(dim=1)
    return torch.where(finite, entropy.exp(), float("nan"))


def sample_rows(nodes: int) -> Tensor:
    """Return the nodes on which the rank is measured."""
    return torch.linspace(0, nodes - 1, min(nodes, SAMPLE)).round().long()


def collapse_epochs(history: History) -> dict[int, int]:
    """Return, for each collapsed model, the first epoch at which its rank was below the bound."""
    if not len(history):
        return {}
    at, ranks = history.measured("effective_rank")
    collapsed = {}
    for model, initial in enumerate(ranks[0] if len(at) else ()):  # an embedding with NaN has no rank
        below = at[ranks[:, model] < max(MIN_RANK, MIN_SHARE * initial)]
        if len(below) and initial >= MIN_RANK:
            collapsed[model] = int(below[0])
    return collapsed


def warn_of_collapse(history: History, *, stacklevel: int) -> None:
    """Warn about each collapsed model, with the epoch and its rank."""
    for model, epoch in collapse_epochs(history).items():
        at, ranks = history.measured("effective_rank")
        rank = ranks[list(at).index(epoch), model]
        warnings.warn(
            f"model {model}: the representation collapsed: at epoch {epoch} its effective rank fell to "
            f"{rank:.1f} from {ranks[0, model]:.1f}; try fewer epochs, a smaller learning rate or "
            "a larger momentum",
            CollapseWarning,
            stacklevel=stacklevel,
        )
