"""How the command line sets the estimator's arguments."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from h3gnn.cli.output import say
from h3gnn.errors import InputError
from h3gnn.settings import LARGEST_SEED, NAMED_PRESETS, SETTINGS, check_arguments, parse_value

if TYPE_CHECKING:
    from h3gnn.estimator import H3GNN

METHOD = "The method"
LARGE = "Graphs past memory, and several processes"


def _option(name: str, panel: str | None = None, *flags: str, **more: Any) -> Any:
    """Return the option that sets an argument, in the words of its list."""
    setting = SETTINGS[name]
    words = f": {', '.join(setting.words)}." if setting.words else "."
    return typer.Option(*flags, help=setting.help.removesuffix(".") + words, rich_help_panel=panel, **more)


PresetOption = Annotated[
    str | None,
    typer.Option(
        help=f"Start from named settings: {', '.join(f'`{name}`' for name in NAMED_PRESETS)}, "
        "a benchmark such as `texas`, or a file of `h3gnn tune`.",
        rich_help_panel=METHOD,
    ),
]
EpochsOption = Annotated[int | None, _option("epochs", METHOD)]
ChannelsOption = Annotated[int | None, _option("channels", METHOD)]
HopsOption = Annotated[int | None, _option("hops", METHOD)]
ModelsOption = Annotated[int | None, _option("n_models", METHOD, "--models")]
MaskOption = Annotated[str | None, _option("mask", METHOD)]
LearningRateOption = Annotated[float | None, _option("learning_rate", METHOD)]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="Any other argument of `H3GNN`, e.g. `--set mask_ratio=0.5`; may be repeated.",
        rich_help_panel=METHOD,
    ),
]
BatchSizeOption = Annotated[int | None, _option("batch_size", LARGE)]
FanOutOption = Annotated[str | None, _option("fan_out", LARGE)]
BatchesOption = Annotated[str | None, _option("batches", LARGE)]
MemoryOption = Annotated[str | None, _option("memory", LARGE)]
SeedOption = Annotated[int, _option("random_state", min=0, max=LARGEST_SEED)]
DeviceOption = Annotated[str, _option("device")]
SafeCsvOption = Annotated[
    bool,
    typer.Option(
        "--safe-csv",
        help="In a CSV, put a quote before ids and names that a spreadsheet would take for formulas (`=…`).",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON, for machines.")]


def build_estimator(
    preset: str | None, named: dict[str, Any], assignments: list[str] | None, *, seed: int, device: str
) -> H3GNN:
    """Return an estimator with the preset, then the named options, then `--set` on top."""
    from h3gnn.estimator import H3GNN

    given = {"device": device, **given_settings(named, assignments), "random_state": seed}
    model = H3GNN(**given) if preset is None else H3GNN.from_preset(preset, **given)
    check_arguments(model.get_params())
    return model


def given_settings(named: dict[str, Any], assignments: list[str] | None) -> dict[str, Any]:
    """Return what the named options and then `--set` set, by argument."""
    given = {name: value for name, value in named.items() if value is not None}
    for text in assignments or []:
        name, value = split_assignment("--set", text, "NAME=VALUE")
        if name == "random_state":
            raise InputError(
                "--set random_state: give --seed (--seeds, where a command trains several times)"
            )
        given[name] = parse_value(name, value)
    return given


def say_fixed(fixed: Collection[str], ranges: Iterable[str]) -> None:
    """Say which settings a search leaves alone since the user gave them."""
    held = [name for name in dict.fromkeys(ranges) if name in fixed]
    if held:
        say(f"fixed as given, and varied by no trial: {', '.join(held)}")


def split_assignment(option: str, text: str, form: str) -> tuple[str, str]:
    """Return the name of a setting and what an option assigns to it; another name is refused."""
    name, equals, value = text.partition("=")
    if not equals:
        raise InputError(f"{option} {text}: write {form}")
    if name.strip() not in SETTINGS:
        near = get_close_matches(name, SETTINGS, 1, cutoff=0.7)
        meant = f"; did you mean {near[0]}?" if near else "; `help(h3gnn.H3GNN)` lists them"
        raise InputError(f"{option} {name.strip()}: H3GNN has no such argument{meant}")
    return name.strip(), value


def check_output(path: Path, endings: tuple[str, ...]) -> None:
    """Refuse a path that could not be written, before the work and not after it."""
    if path.suffix.lower() not in endings:
        raise InputError(f"{path}: the ending must be one of {', '.join(endings)}")
    if not path.parent.is_dir():
        raise InputError(f"{path}: the folder {path.parent} does not exist")
    if path.is_dir():
        raise InputError(f"{path} is a folder; name a file")


def parse_numbers(option: str, text: str, example: str) -> list[int]:
    """Return `10,5` as numbers."""
    try:
        return [int(one) for one in text.split(",")]
    except ValueError:
        raise InputError(
            f"{option} {text}: write whole numbers with commas between, e.g. {example}"
        ) from None
