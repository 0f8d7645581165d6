"""Who may import whom: data walks one way through the package."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "src" / "h3gnn"

FORBIDDEN = {
    "graphs": {
        "baselines",
        "encoder",
        "masking",
        "training",
        "evaluation",
        "experiments",
        "report",
        "estimator",
        "cli",
    },
    "masking": {
        "baselines",
        "graphs",
        "encoder",
        "training",
        "evaluation",
        "experiments",
        "report",
        "estimator",
        "cli",
    },
    "encoder": {
        "baselines",
        "graphs",
        "masking",
        "training",
        "evaluation",
        "experiments",
        "report",
        "estimator",
        "cli",
    },
    "training": {"baselines", "graphs", "evaluation", "experiments", "report", "estimator", "cli", "presets"},
    "evaluation": {
        "baselines",
        "encoder",
        "masking",
        "training",
        "experiments",
        "report",
        "estimator",
        "cli",
        "presets",
    },
    "report": {"baselines", "encoder", "masking", "training", "experiments", "estimator", "cli", "presets"},
    "baselines": {
        *("encoder", "masking", "training", "evaluation", "experiments"),
        *("report", "estimator", "cli", "presets"),
    },
    "estimator": {"baselines", "cli", "report", "evaluation", "experiments"},
    "experiments": {"cli", "report"},
    "report/findings": {
        "graphs",
        "masking",
        "encoder",
        "training",
        "evaluation",
        "report",
        "estimator",
        "cli",
    },
}


def imports_of(path: Path) -> set[str]:
    """Names of the parts of h3gnn that a module imports, wherever the import stands."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("h3gnn"):
            parts = (node.module or "").split(".")
            if parts[1:] == ["report", "findings"] and "experiments" in path.parts:
                continue  # what experiments hand over and report shows
            found |= {parts[1]} if len(parts) > 1 else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {a.name.split(".")[1] for a in node.names if a.name.startswith("h3gnn.")}
    return found


@pytest.mark.parametrize("part", FORBIDDEN)
def test_data_walks_one_way(part: str) -> None:
    folder = PACKAGE / part
    modules = list(folder.rglob("*.py")) if folder.is_dir() else [folder.with_suffix(".py")]
    assert modules
    wrong = {module.name: imports_of(module) & FORBIDDEN[part] for module in modules}
    assert not {name: names for name, names in wrong.items() if names}


def test_report_sees_no_loader() -> None:
    for module in (PACKAGE / "report").rglob("*.py"):
        for node in ast.walk(ast.parse(module.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("h3gnn.graphs"):
                assert node.module in ("h3gnn.graphs.graph", "h3gnn.graphs.profile"), module


def test_the_package_imports_without_its_optional_libraries() -> None:
    blocked = ("safetensors", "pyarrow", "matplotlib", "rich", "optuna", "networkx", "tensorboard", "umap")
    code = (
        "import sys\n"
        f"for name in {blocked!r}: sys.modules[name] = None\n"
        "import h3gnn.estimator, h3gnn.experiments.collect\n"
        "import h3gnn.experiments.tables.reproduce, h3gnn.experiments.tables.document\n"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)


def test_help_does_not_wait_for_torch() -> None:
    code = "import sys, h3gnn.cli.app; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
