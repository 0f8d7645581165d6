"""Settings of `H3GNN`: the single list of names, valid values and help texts, and their groups.

Users see most settings in three groups (`encoder=`, `masking=`, `target=`). Inside the library, settings are
one flat dict; `flatten` and `nest` convert.
"""

from __future__ import annotations

import json
import numbers
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import wraps
from inspect import signature
from typing import Any, Self

from h3gnn.errors import InputError, check_choice, check_number, check_whole
from h3gnn.storage.schema import Checked, Integer, Maybe, Record, Text

PURPOSES = ("log", "run", "result", "preset")
"""Purposes for which settings are stored; each leaves out more of them.

A log has all but `verbose`. A run may resume on another device. A result stores its seeds elsewhere. A preset
applies to any machine and any graph size.
"""


@dataclass(frozen=True)
class Setting:
    """One setting of `H3GNN`; `check(name, value)` raises an `InputError` for an invalid value."""

    help: str
    check: Callable[[str, Any], object] = lambda name, value: None
    values: str = ""  # for the reference pages
    words: tuple[str, ...] = ()  # which `--set` takes literally
    may_be_none: bool = False
    left_out_of: str | None = None  # the first of `PURPOSES` that does not store it
    alias: str = ""  # former name, still accepted


def integer(least: int, text: str, most: int | None = None, **more: Any) -> Setting:
    """Return an integer setting of at least `least` and at most `most`.

    Upper bounds are far beyond all use: they catch typing errors before memory is allocated.
    """
    values = f"{least}, …" if most is None else f"{least} to {most:,}"
    return Setting(text, lambda name, value: check_whole(name, value, least, most), values, **more)


def number(
    least: float, below: float, text: str, *, closed: bool = False, word: str = "", alias: str = ""
) -> Setting:
    """Return a setting that is a number in a range, or one given word."""

    def check(name: str, value: Any) -> None:
        if isinstance(value, str) and word:
            if value != word:
                raise InputError(f"{name} must be {word!r} or a number, not {value!r}", code="value-invalid")
            return
        check_number(name, value, least, below, closed=closed)

    values = f"[{least:g}, {below:g}{']' if closed else ')'}"
    words = (word,) if word else ()
    return Setting(text, check, f'"{word}", {values}' if word else values, words, alias=alias)


def choice(words: tuple[str, ...], text: str, *, several: bool = False, **more: Any) -> Setting:
    """Return a setting that is one of some words or, with `several`, a list of them."""

    def check(name: str, value: Any) -> None:
        for one in value if several and isinstance(value, list | tuple) and value else [value]:
            check_choice(name, one, words)

    return Setting(text, check, ", ".join(f'"{word}"' for word in words), words, **more)


def flag(text: str, **more: Any) -> Setting:
    """Return a setting that is True or False."""

    def check(name: str, value: Any) -> None:
        if isinstance(value, str) or str(value) not in ("True", "False", "0", "1"):  # numpy's too
            raise InputError(f"{name} must be True or False, not {value!r}", code="value-invalid")

    return Setting(text, check, "True, False", **more)


def _check_num_neighbors(name: str, value: Any) -> None:
    for one in value if isinstance(value, list | tuple) else [value]:
        is_integer = isinstance(one, numbers.Integral) and not isinstance(one, bool)
        if not is_integer or not (one >= 1 or one == -1):
            message = f"{name} must be a number of neighbours per hop, or -1 for all, not {value!r}"
            raise InputError(message, code="value-invalid")


LARGEST_SEED = 2**32 - 1
"""The largest seed that numpy, scikit-learn and torch all accept."""


def _check_seed(name: str, value: Any) -> None:
    if type(value).__name__ != "RandomState":  # numpy's, from which a seed is drawn
        check_whole(name, value, 0, LARGEST_SEED)


UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
UNITS |= {"K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


def parse_memory(given: int | str) -> int:
    """Return the bytes of a size such as 10000, "8GB" or "512 MiB"."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", str(given))
    size = 0.0 if match is None else float(match[1]) * UNITS.get(match[2].upper(), 0)
    if isinstance(given, bool) or not 0 < size < 2**63:
        message = f"memory must be a size such as '8GB' or '512MiB', not {given!r}"
        raise InputError(message, code="value-invalid")
    return int(size)


SETTINGS: dict[str, Setting] = {
    "channels": integer(1, "Width of a token.", 2**16),
    "hops": integer(1, "Number of hops; one token for each.", 100),
    "max_paths": integer(
        1, "Maximum number of tokens of a graph with relations, one per path.", 100, left_out_of="preset"
    ),
    "min_layers": integer(1, "Minimum layers of a hop token; at most `hops`.", 2, alias="least_layers"),
    "hidden_channels": integer(1, "Hidden width of the token MLP and the GCNs.", 2**18, may_be_none=True),
    "heads": integer(1, "Attention heads; must divide `channels`."),
    "norm": choice(("residual-post", "post", "pre"), "Position of the norm in the Transformer block."),
    "activation": choice(("gelu", "relu"), "Activation in the MLP of the Transformer block."),
    "fusion": choice(
        ("attention", "hierarchical", "mlp"), "Fusion of tokens: attention, hops first, or an MLP (ablation)."
    ),
    "output": choice(
        ("flatten", "first", "max"), "Embedding: all tokens, the first token, or the maximum over tokens."
    ),
    "batch_norm": flag("Batch norm between the layers of a weighted GCN."),
    "token_dropout": number(0, 1, "Dropout rate of tokens in training."),
    "attention_dropout": number(0, 1, "Dropout rate of attention in training."),
    "undirected": flag("Let messages flow both ways along each edge."),
    "self_loops": flag("Include each node in its own neighbourhood."),
    "normalize": flag("Multiply each learned edge weight by its entry of Ã."),
    "edge_init": number(
        0, 1, "Initial edge weights: of Ã, or one number.", closed=True, word="normalized", alias="edge_start"
    ),
    "edge_weights": choice(
        ("fixed", "free", "learned", "computed"),
        "Edge weights: fixed at Ã, learned, learned in (0, 1), or computed from both ends.",
    ),
    "edge_rate": number(0, 1000, "Learning rate of learned edge weights, relative to `learning_rate`."),
    "scale_features": choice(("auto", "none", "rows", "columns"), "Scaling of features."),
    "n_neighbors": integer(1, "Nearest neighbours of each row of a table without edges."),
    "feature_drop": number(0, 1, "Rate of dropped feature columns; `auto` is the objective's.", word="auto"),
    "edge_drop": number(0, 1, "Rate of dropped edges; `auto` is the objective's.", word="auto"),
    "mask": choice(("random", "difficulty", "probability"), "Sampling of masked nodes."),
    "mask_ratio": number(0, 1, "Fraction of nodes to mask; `auto` is the objective's.", word="auto"),
    "hard_fraction": number(
        0, 1, "Fraction of masked nodes chosen by difficulty.", closed=True, alias="exploit_ratio"
    ),
    "mask_size": choice(
        ("bounded", "exact", "free"), "Size of a probability mask: near ⌊N·R⌋, exactly that, or unbounded."
    ),
    "replace_rate": number(
        0, 1, "Fraction of masked nodes that get another node's features, not the token.", alias="swap_ratio"
    ),
    "mask_warmup": integer(0, "Epochs with random masks at the start."),
    "mask_token": choice(("normal", "zero"), "Initial value of the learnable mask token."),
    "objective": choice(
        ("teacher", "decorrelation", "neighbours", "edges", "features", "masked-features"),
        "Training objective of the models: one, or a list assigned in turn.",
        several=True,
    ),
    "targets": choice(("standardized", "plain"), "The teacher's embedding, columns standardized or not."),
    "loss": choice(
        ("squared", "cosine", "scaled-cosine"),
        "Loss of the objective `teacher`: squared distance, 1 − cosine, or its square.",
    ),
    "teacher_mode": choice(("eval", "train"), "Teacher without dropout (eval) or with it (train)."),
    "momentum": number(0, 1, "Momentum of the teacher's moving average.", closed=True),
    "epochs": integer(0, "Training steps."),
    "learning_rate": number(0, 10, "Learning rate of Adam."),
    "weight_decay": number(0, 10, "Weight decay of Adam."),
    "schedule": choice(("cosine", "constant"), "Learning rate schedule after the warm-up."),
    "warmup_epochs": integer(0, "Epochs over which the learning rate rises.", alias="lr_warmup"),
    "nodes_per_step": Setting(
        "Random nodes in the loss of each step; `auto` is half of them, and at least 8,192.",
        lambda name, value: value == "auto" or check_whole(name, value, 2),
        '"auto", 2, …',
        ("auto",),
        may_be_none=True,
    ),
    "n_models": integer(1, "Number of models to train; their embeddings are concatenated.", 10_000),
    "concat_tokens": flag("Concatenate the tokens to the fused embedding.", alias="tokens"),
    "smoothing": number(
        -0.99,
        0.99,
        "Smooth over edges (> 0) or sharpen (< 0); `auto` uses the features.",
        closed=True,
        word="auto",
    ),
    "input_weight": number(
        0, 10, "Weight of the blocks of input features next to the embedding; 0 leaves them out.", closed=True
    ),
    "dimensions": integer(
        1, "Principal components to reduce the embedding to; None keeps all columns.", 2**20, may_be_none=True
    ),
    "smoother": choice(("walks", "powers"), "Smoothing by random walks, or by powers of Ã."),
    "precision": choice(("auto", "float32", "bfloat16"), "Precision of the fusion block in training."),
    "feature_storage": choice(("auto", "csr", "dense"), "Storage of features in memory."),
    "batch_size": integer(
        1, "Nodes per mini-batch; None trains on the full graph.", may_be_none=True, left_out_of="preset"
    ),
    "num_neighbors": Setting(
        "Sampled neighbours per node and hop, e.g. `10,5`; -1 is all.",
        _check_num_neighbors,
        "1, …, -1, or one for each hop",
        may_be_none=True,
        left_out_of="preset",
        alias="fan_out",
    ),
    "batches": choice(
        ("neighbours", "clusters"),
        "Mini-batches of sampled neighbours, or of METIS clusters (needs pymetis).",
        left_out_of="preset",
    ),
    "memory": Setting(
        "Memory budget, e.g. `8GB`, of full-batch training and of arrays over all nodes; the activations "
        "of a mini-batch depend on `batch_size`.",
        lambda name, value: parse_memory(value),
        '"8GB", "512MiB", bytes',
        may_be_none=True,
        left_out_of="preset",
    ),
    "random_state": Setting(
        "Random seed; the same seed gives the same result.",
        _check_seed,
        f"0 to {LARGEST_SEED:,}",
        may_be_none=True,
        left_out_of="result",
    ),
    "device": Setting("Device: auto, cpu or cuda.", values='"auto", "cpu", "cuda", …', left_out_of="run"),
    "verbose": flag("Show a progress bar.", left_out_of="log"),
}


class _Config:
    def __repr__(self) -> str:
        """Show the settings that differ from the defaults."""
        values = {one.name: (getattr(self, one.name), one.default) for one in fields(self)}  # type: ignore[arg-type]
        changed = [f"{name}={value!r}" for name, (value, default) in values.items() if value != default]
        return f"{type(self).__name__}({', '.join(changed)})"


@dataclass(frozen=True, repr=False)
class EncoderConfig(_Config):
    """Settings of the encoder, its edge weights and its output."""

    min_layers: int = 1
    hidden_channels: int | None = None
    heads: int = 4
    norm: str = "post"
    activation: str = "gelu"
    fusion: str = "attention"
    output: str = "flatten"
    batch_norm: bool = False
    token_dropout: float = 0.0
    attention_dropout: float = 0.1
    edge_weights: str = "fixed"
    edge_init: float | str = "normalized"
    edge_rate: float = 1.0
    normalize: bool = False
    concat_tokens: bool = False
    input_weight: float = 0.4
    smoother: str = "walks"
    precision: str = "auto"
    feature_storage: str = "auto"


@dataclass(frozen=True, repr=False)
class MaskingConfig(_Config):
    """Settings of the masks and views that the student sees."""

    mask: str = "probability"
    mask_ratio: float | str = "auto"
    hard_fraction: float = 0.5
    mask_size: str = "bounded"
    replace_rate: float = 0.0
    mask_warmup: int = 10
    mask_token: str = "zero"
    feature_drop: float | str = "auto"
    edge_drop: float | str = "auto"


@dataclass(frozen=True, repr=False)
class TargetConfig(_Config):
    """Settings of the teacher, the loss and the learning rate schedule."""

    targets: str = "standardized"
    loss: str = "squared"
    teacher_mode: str = "eval"
    momentum: float = 0.9
    schedule: str = "cosine"
    warmup_epochs: int = 10
    nodes_per_step: int | str | None = "auto"


GROUPS: dict[str, Any] = {"encoder": EncoderConfig, "masking": MaskingConfig, "target": TargetConfig}
"""The arguments of `H3GNN` that are groups of settings, and their classes."""
for _config in GROUPS.values():
    _config.__doc__ += "\n\nAttributes:\n" + "".join(
        f"    {one.name}: {SETTINGS[one.name].help}\n" for one in fields(_config)
    )
GROUP_OF = {field.name: group for group, config in GROUPS.items() for field in fields(config)}
"""The group of each setting that is in one."""
ALIASES = {setting.alias: name for name, setting in SETTINGS.items() if setting.alias}
"""Former names of settings, and their names now."""


def setting_name(given: str) -> str | None:
    """Return the name of a setting given as `heads`, `encoder.heads`, `encoder__heads` or its former name."""
    group, dot, name = given.strip().replace("__", ".").rpartition(".")
    name = ALIASES.get(name, name)
    known = name in SETTINGS and (not dot or GROUP_OF.get(name) == group)
    return name if known else None


def canonical(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with former names replaced by the current ones."""
    return {ALIASES.get(name, name): value for name, value in params.items()}


def original(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings under the names by which checkpoints and hashes of results identify them."""
    former = {name: setting.alias for name, setting in SETTINGS.items() if setting.alias}
    return {former.get(name, name): value for name, value in params.items()}


def flatten(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of `H3GNN` as one flat dict, groups replaced by their settings."""
    flat = {}
    for name, value in params.items():
        if name not in GROUPS:
            flat[ALIASES.get(name, name)] = value
            continue
        config = GROUPS[name]() if value is None else value
        if not isinstance(config, GROUPS[name]):
            kind = GROUPS[name].__name__
            raise InputError(f"{name} must be a h3gnn.{kind} or None, not {value!r}", code="value-invalid")
        flat |= {field.name: getattr(config, field.name) for field in fields(config)}
    return flat


def nest(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Return flat settings as arguments of `H3GNN`; missing settings of a group take their defaults."""
    settings = canonical(flat)
    nested = {name: value for name, value in settings.items() if name not in GROUP_OF}
    for group, config in GROUPS.items():
        own = {name: value for name, value in settings.items() if GROUP_OF.get(name) == group}
        if config(**own) != config():
            nested[group] = config(**own)
    return nested


BEFORE: dict[str, Any] = {
    "targets": "plain",
    "feature_drop": 0.0,
    "edge_drop": 0.0,
    "edge_weights": "learned",
    "edge_rate": 1.0,
    "nodes_per_step": None,
    "concat_tokens": False,
    "input_weight": 0.0,
    "dimensions": None,
    "smoother": "walks",
    "mask_size": "bounded",
    "loss": "squared",
    "replace_rate": 0.0,
    "min_layers": 1,
    "max_paths": 8,
    "activation": "gelu",
}
"""Values in effect before these settings existed: presets and stored results that do not name them."""


def _stored(name: str, setting: Setting) -> Any:
    if name == "random_state":
        return Maybe(Integer(0))
    kind = Text() if name == "device" else Checked(setting.check)
    return Maybe(kind) if setting.may_be_none else kind


STORED = Record(
    {}, {known: _stored(name, one) for name, one in SETTINGS.items() for known in (name, one.alias) if known}
)
"""Settings in a file: any of them, under their current or former names, with valid values."""


def check_arguments(given: Mapping[str, Any]) -> None:
    """Check every setting of a flat dict, then combinations."""
    for name, setting in SETTINGS.items():
        if given[name] is not None or not setting.may_be_none:
            setting.check(name, given[name])
    for code, wrong, message in _conflicts(given):
        if wrong:
            raise InputError(message, code=code)


def _conflicts(given: Mapping[str, Any]) -> Iterator[tuple[str, bool, str]]:
    """Yield combinations that may be invalid: error code, whether it is, message."""
    sampled, hops, edges = given["num_neighbors"], given["hops"], given["edge_weights"]
    if isinstance(sampled, list | tuple):
        message = f"num_neighbors gives {len(sampled)} hop(s), but hops is {hops}"
        yield "num-neighbors-per-hop", len(sampled) != hops, message
    if given["fusion"] != "mlp":
        message = f"channels ({given['channels']}) must be a multiple of heads ({given['heads']})"
        yield "channels-not-multiple-of-heads", given["channels"] % given["heads"] != 0, message
    message = f"min_layers ({given['min_layers']}) must not be more than hops ({hops})"
    yield "more-layers-than-hops", given["min_layers"] > hops, message
    message = (
        f'edge_weights="{edges}" needs full-graph training: omit batch_size, or --set edge_weights=fixed'
    )
    in_batches = edges in ("free", "learned") and given["batch_size"] is not None
    yield "learned-edges-need-full-graph", in_batches, message
    message = 'edge_init must be above 0 for edge_weights="free": at 0 no gradient flows'
    yield "edge-init-zero", edges == "free" and given["edge_init"] == 0, message


def kept_for(purpose: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the flat settings that one of `PURPOSES` stores, as plain Python values."""
    reached = PURPOSES[: PURPOSES.index(purpose) + 1]
    left_out = {name for name, setting in SETTINGS.items() if setting.left_out_of in reached}
    return {name: as_plain(value) for name, value in params.items() if name not in left_out}


def as_plain(value: Any) -> Any:
    """Return NumPy scalars and arrays as plain Python values for JSON; other values unchanged."""
    if hasattr(value, "tolist") and hasattr(value, "dtype"):
        return value.tolist()
    return [as_plain(one) for one in value] if isinstance(value, list | tuple) else value


def parse_value(name: str, text: str) -> Any:
    """Return the value of a setting from text: a number, a boolean, None, a word or a list of words."""
    text = text.strip()
    if name in SETTINGS and text in SETTINGS[name].words:  # "none" is a word for some
        return text
    several = [one.strip() for one in text.split(",")]
    if name in SETTINGS and len(several) > 1 and all(one in SETTINGS[name].words for one in several):
        return several
    words = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    try:
        return json.loads(text)
    except ValueError:
        return text


def with_former_names(init: Callable[..., None]) -> Callable[..., None]:
    """Let a constructor also take settings of groups by themselves, and former names."""
    arguments = set(signature(init).parameters)

    @wraps(init)
    def construct(self: Any, **given: Any) -> None:
        single = [name for name in given if name not in arguments and setting_name(name)]
        settings = {name: given.pop(name) for name in single}
        init(self, **given)
        self._set(settings)

    return construct


class SettingsMixin:
    """Arguments of a scikit-learn estimator that are partly in groups; precedes `BaseEstimator`."""

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Self:
        """Return an estimator with the settings of a flat dict, as `get_settings` returns them."""
        arguments = nest(settings)
        unknown = sorted(set(arguments) - set(cls._get_param_names()))  # type: ignore[attr-defined]
        if unknown:
            raise InputError(f"H3GNN has no setting {unknown[0]}", code="unknown-setting")
        return cls(**arguments)

    def get_settings(self) -> dict[str, Any]:
        """Return all settings as one flat dict, those of the groups included."""
        return flatten(self.get_params(deep=False))

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the arguments; if `deep`, also the settings of the groups, as `encoder__heads`."""
        params: dict[str, Any] = super().get_params(deep=False)  # type: ignore[misc]
        for group, config in GROUPS.items() if deep else ():
            value = config() if params[group] is None else params[group]
            if isinstance(value, config):
                params |= {f"{group}__{one.name}": getattr(value, one.name) for one in fields(value)}
        return params

    def set_params(self, **params: Any) -> Self:
        """Set arguments, or settings of a group as `encoder__heads=2`."""
        return self._set(params)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute; `model.heads = 2` sets the setting of the group, with a warning."""
        setting = setting_name(name)
        if setting is not None and (setting in GROUP_OF or setting != name):
            self._set({name: value})
        else:
            super().__setattr__(name, value)

    def _set(self, params: dict[str, Any]) -> Self:
        changes: dict[str, dict[str, Any]] = {}
        for given in list(params):
            name = setting_name(given)
            if name is None and given.split("__")[0] in GROUPS and "__" in given:
                raise InputError(f"H3GNN has no setting {given}", code="unknown-setting")
            if name is None or (given == name and name not in GROUP_OF):
                continue  # an argument, or unknown to scikit-learn too
            group, value = GROUP_OF.get(name), params.pop(given)
            here = name if group is None else f"{group}__{name}"
            if given != here:
                warnings.warn(f"H3GNN: {given}=… is deprecated, use {here}=…", FutureWarning, stacklevel=3)
            if group is None:
                params[name] = value
            else:
                changes.setdefault(group, {})[name] = value
        super().set_params(**params)  # type: ignore[misc]
        for group, values in changes.items():
            config = getattr(self, group)
            setattr(self, group, replace(GROUPS[group]() if config is None else config, **values))
        return self

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:  # noqa: N803
        """Show the settings that differ from the defaults, many of them one per line."""
        default = type(self)().get_params(deep=False)
        params = self.get_params(deep=False)
        shown = [f"{name}={value!r}" for name, value in params.items() if value != default[name]]
        if len(shown) <= 3:
            return f"{type(self).__name__}({', '.join(shown)})"
        return "\n".join([f"{type(self).__name__}(", *(f"    {one}," for one in shown), ")"])
