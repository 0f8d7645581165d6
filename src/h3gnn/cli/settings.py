"""How the command line sets the estimator's arguments."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from h3gnn.errors import InputError

if TYPE_CHECKING:
    from h3gnn.estimator import H3GNN

PANEL = "The method"

PresetOption = Annotated[
    str | None,
    typer.Option(
        help="Start from named settings: `paper`, a benchmark such as `texas`, or a file of `h3gnn tune`.",
        rich_help_panel=PANEL,
    ),
]
EpochsOption = Annotated[int | None, typer.Option(help="Training steps.", rich_help_panel=PANEL)]
ChannelsOption = Annotated[int | None, typer.Option(help="Width of a token.", rich_help_panel=PANEL)]
HopsOption = Annotated[
    int | None, typer.Option(help="How far the neighbourhood tokens reach.", rich_help_panel=PANEL)
]
ModelsOption = Annotated[
    int | None,
    typer.Option("--models", help="Train so many models and join their embeddings.", rich_help_panel=PANEL),
]
MaskOption = Annotated[
    str | None, typer.Option(help="random, difficulty or probability.", rich_help_panel=PANEL)
]
LearningRateOption = Annotated[float | None, typer.Option(help="Of Adam.", rich_help_panel=PANEL)]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="Any other argument of `H3GNN`, e.g. `--set mask_ratio=0.5`; may be repeated.",
        rich_help_panel=PANEL,
    ),
]
BATCHES_PANEL = "Graphs past memory, and several processes"
BatchSizeOption = Annotated[
    int | None,
    typer.Option(help="Train on so many nodes at a time, not on all.", rich_help_panel=BATCHES_PANEL),
]
FanOutOption = Annotated[
    str | None,
    typer.Option(help="Neighbours per node and hop, e.g. `10,5`; -1 is all.", rich_help_panel=BATCHES_PANEL),
]
BatchesOption = Annotated[
    str | None,
    typer.Option(help="neighbours, or clusters (METIS, needs pymetis).", rich_help_panel=BATCHES_PANEL),
]
MemoryOption = Annotated[
    str | None,
    typer.Option(
        help="A budget, e.g. `8GB`: picks how many nodes to work on at a time.", rich_help_panel=BATCHES_PANEL
    ),
]
SeedOption = Annotated[int, typer.Option(help="The same seed gives the same result.")]
DeviceOption = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON, for machines.")]


def build_estimator(
    preset: str | None, named: dict[str, Any], assignments: list[str] | None, *, seed: int, device: str
) -> H3GNN:
    """Return an estimator with the preset, then the named options, then `--set` on top."""
    from h3gnn.arguments import check_arguments
    from h3gnn.estimator import H3GNN

    given = {name: value for name, value in named.items() if value is not None}
    given |= dict(_assignment(text) for text in assignments or [])
    unknown = sorted(set(given) - set(H3GNN().get_params()))
    if unknown:
        raise InputError(f"--set {unknown[0]}: H3GNN has no such argument; see the list in docs/method.md")
    given |= {"random_state": seed, "device": device}
    model = H3GNN(**given) if preset is None else H3GNN.from_preset(preset, **given)
    check_arguments(model.get_params())
    return model


def _assignment(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise InputError(f"--set {text}: write NAME=VALUE")
    return name.strip(), parse_value(name.strip(), value)


def parse_value(name: str, text: str) -> Any:
    """Return the number, truth value, nothing or word that a text stands for as the value of an argument."""
    from h3gnn.arguments import CHOICES

    if text.strip() in CHOICES.get(name, ()):  # "none" is a word for some
        return text.strip()
    words = {"true": True, "false": False, "none": None}
    if text.strip().lower() in words:
        return words[text.strip().lower()]
    try:
        return json.loads(text)
    except ValueError:
        return text.strip()


def check_output(path: Path, endings: tuple[str, ...]) -> None:
    """Refuse a path that could not be written, before the work and not after it."""
    if path.suffix.lower() not in endings:
        raise InputError(f"{path}: the ending must be one of {', '.join(endings)}")
    if not path.parent.is_dir():
        raise InputError(f"{path}: the folder {path.parent} does not exist")
    if path.is_dir():
        raise InputError(f"{path} is a folder; name a file")


def parse_fan_out(text: str | None) -> int | list[int] | None:
    """Return `--fan-out 10,5` as a list and `--fan-out 10` as a number."""
    if text is None:
        return None
    try:
        numbers = [int(one) for one in text.split(",")]
    except ValueError:
        raise InputError(f"--fan-out {text}: write whole numbers with commas between, e.g. 10,5") from None
    return numbers[0] if len(numbers) == 1 else numbers
