"""Import rules, transitively: data flows one way through the package."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import h3gnn

PACKAGE = Path(__file__).parent.parent / "src" / "h3gnn"
ROOT = {"__init__", "__main__", "classifier", "errors", "estimator", "inference", "preprocessing"}
ROOT |= {"database", "recommendations", "resources", "settings"}
FILES = {"storage", "storage.atomic", "storage.schema"}
"""Modules that write and validate files; they import no other part of the package."""

ABOVE = {"classifier", "cli", "database", "estimator", "experiments", "recommendations", "report"}
"""Modules that use everything else."""
FORBIDDEN = {
    "errors": {"*"},
    "resources": {"*"},
    "settings": {"*"},
    "storage.schema": {"*"},
    "storage.atomic": {"*"},
    "storage.tensors": {"*"},
    "storage.checkpoint_file": {"*"},
    "graphs": ABOVE | {"baselines", "encoder", "evaluation", "ondisk", "settings", "storage", "training"},
    "tables": ABOVE | {"baselines", "encoder", "evaluation", "ondisk", "settings", "storage", "training"},
    "ondisk": ABOVE | {"baselines", "encoder", "evaluation", "settings", "storage", "training"},
    "encoder": ABOVE
    | {"baselines", "evaluation", "graphs", "ondisk", "settings", "storage", "tables", "training"},
    "training": ABOVE | {"baselines", "evaluation", "graphs", "ondisk", "settings", "tables"},
    "storage": ABOVE | {"baselines", "encoder", "evaluation", "training"},
    "evaluation": ABOVE
    | {"baselines", "encoder", "graphs", "ondisk", "settings", "storage", "tables", "training"},
    "answers": ABOVE | {"baselines", "encoder", "settings", "training"},
    "baselines": ABOVE | {"evaluation", "settings", "storage", "training"},
    "report": ABOVE - {"report"} | {"answers", "baselines", "encoder", "settings", "training"},
    "classifier": {"baselines", "cli", "database", "experiments", "report"},
    "database": {"baselines", "classifier", "cli", "experiments", "report"},
    "recommendations": {"baselines", "classifier", "cli", "database", "experiments", "report"},
    "estimator": {"baselines", "classifier", "cli", "database", "evaluation", "experiments", "report"},
    "preprocessing": {*ABOVE, "answers", "baselines", "evaluation", "inference", "settings"},
    "inference": {*ABOVE, "baselines", "evaluation", "settings"},
    "experiments": {"cli", "report"},
    "report.findings": {"*"},
}
"""What a part must not import, directly or not. "*" is everything but errors, resources, the packages around
the part, and `h3gnn` itself, which imports lazily."""
ALLOWED = {
    "baselines": {"training", "training.optimizer", "training.resources", "training.teacher"},
    "storage.checkpoint_file": {"storage.tensors"},
    "experiments": {"report", "report.findings"},
}
LOADERS = {"graphs.datasets", "graphs.formats", "ondisk.mapped", "ondisk.prepare", "tables.read"}


def name_of(path: Path) -> str:
    """Return the name of a module below h3gnn, such as `tables.read`."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


MODULES = {name_of(path): path for path in PACKAGE.rglob("*.py")}


@cache
def imports_of(module: str) -> frozenset[str]:
    """Return the modules of h3gnn that a module imports anywhere, with their packages."""
    if module == "__init__":
        return frozenset()
    found = set()
    for node in ast.walk(ast.parse(MODULES[module].read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "h3gnn":
            for alias in node.names:
                found |= set(around(f"{node.module}.{alias.name}"))
        elif isinstance(node, ast.Import):
            found |= {one for alias in node.names for one in around(alias.name)}
    return frozenset(found - {module})


def around(dotted: str) -> Iterator[str]:
    """Yield a module and the packages that Python imports before it."""
    parts = dotted.split(".")
    if parts[0] == "h3gnn":
        yield from (name for end in range(2, len(parts) + 1) if (name := ".".join(parts[1:end])) in MODULES)


def paths_from(module: str) -> dict[str, tuple[str, ...]]:
    """Return every module that one imports, directly or not, with a shortest path to it."""
    ways: dict[str, tuple[str, ...]] = {module: (module,)}
    waiting = [module]
    for here in waiting:
        for there in sorted(imports_of(here) - ways.keys()):
            ways[there] = (*ways[here], there)
            waiting.append(there)
    return ways


def belongs(module: str, part: str) -> bool:
    return module == part or module.startswith(f"{part}.")


@pytest.mark.parametrize("part", FORBIDDEN)
def test_data_flows_one_way(part: str) -> None:
    modules = [module for module in MODULES if belongs(module, part)]
    assert modules
    forbidden = FORBIDDEN[part]
    if forbidden == {"*"}:
        forbidden = set(MODULES) - {"__init__", "errors", "resources", *modules, *around(f"h3gnn.{part}")}
    allowed = ALLOWED.get(part, set()) | FILES
    wrong = [
        " -> ".join(way)
        for module in modules
        for there, way in paths_from(module).items()
        if any(belongs(there, one) for one in forbidden) and there not in allowed
    ]
    assert not wrong


SHARED_BY_COMMANDS = {f"cli.{name}" for name in ("databases", "exit", "options", "output", "training")}


def test_commands_do_not_import_each_other() -> None:
    commands = {name for name in MODULES if belongs(name, "cli") and name not in ("cli", "cli.app")}
    commands -= SHARED_BY_COMMANDS
    for command in commands:
        assert not imports_of(command) & commands, command
    for shared in SHARED_BY_COMMANDS:
        assert not imports_of(shared) & commands, shared


def test_report_imports_no_loader() -> None:
    assert MODULES.keys() >= LOADERS
    for module in (module for module in MODULES if belongs(module, "report")):
        direct = {name for name in imports_of(module) if name.startswith(("graphs.", "storage."))}
        assert direct <= {"graphs.graph", "graphs.profile", *FILES}, module
        assert not LOADERS & paths_from(module).keys(), module


def package_of(module: str) -> str:
    """Return the package of a module; graphs and tables are one layer without cycles of modules."""
    package = module if module in FILES else module.split(".", maxsplit=1)[0]
    return "graphs" if package == "tables" else package


def test_no_package_imports_one_that_imports_it() -> None:
    packages: dict[str, set[str]] = {}
    for module in MODULES:
        used = imports_of(module) - {"storage"}  # its __init__ imports nothing
        packages.setdefault(package_of(module), set()).update(map(package_of, used))
    _assert_no_cycle({package: used - {package} for package, used in packages.items()})


def test_no_module_of_graphs_and_tables_is_part_of_a_cycle() -> None:
    typed = {("graphs.graph", "tables.plan"), ("tables.roles", "tables.reader")}  # under TYPE_CHECKING
    typed |= {("graphs.graph", "graphs.link_columns"), ("graphs.graph", "graphs.type_view")}
    modules = [module for module in MODULES if package_of(module) == "graphs"]
    _assert_no_cycle(
        {module: {name for name in imports_of(module) if (module, name) not in typed} for module in modules}
    )


def _assert_no_cycle(uses: dict[str, set[str]]) -> None:
    while uses:
        done = {name for name, used in uses.items() if not used & uses.keys()}
        assert done, f"cyclic imports: {sorted(uses)}"
        uses = {name: used for name, used in uses.items() if name not in done}


def test_the_root_has_few_modules() -> None:
    assert {path.stem for path in PACKAGE.glob("*.py")} == ROOT


def test_every_public_name_has_a_docstring() -> None:
    for name in h3gnn.__all__:
        found = getattr(h3gnn, name)
        assert name == "__version__" or (found.__doc__ or "").strip(), name
        assert name in dir(h3gnn)
    with pytest.raises(AttributeError, match="nonsense"):
        h3gnn.nonsense  # noqa: B018


def test_every_public_name_is_in_the_reference() -> None:
    pages = "".join(path.read_text(encoding="utf-8") for path in PACKAGE.parents[1].glob("docs/api/*.md"))
    shown = {line.removeprefix("::: ").strip() for line in pages.splitlines() if line.startswith(":::")}
    for name in set(h3gnn.__all__) - {"__version__"}:
        found = getattr(h3gnn, name)
        homes = {found.__module__, f"{found.__module__}.{found.__name__}"}
        assert homes & shown, f"{name} of {found.__module__} is not in docs/api"
        assert f"`{name}`" in pages, f"{name} is not in the list of public names"


def test_the_package_imports_without_its_optional_libraries() -> None:
    blocked = ("safetensors", "matplotlib", "rich", "optuna", "networkx", "tensorboard", "umap")
    code = (
        "import sys\n"
        f"for name in {blocked!r}: sys.modules[name] = None\n"
        "import h3gnn.estimator, h3gnn.experiments.report_data\n"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)


def test_the_cli_does_not_import_torch() -> None:
    code = "import sys, h3gnn.cli.app; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
