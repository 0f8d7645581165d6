"""Run the shell commands of a documentation page: in a real shell, or in this process, which is faster."""

from __future__ import annotations

import io
import os
import re
import runpy
import shlex
import subprocess
import sys
from contextlib import chdir, redirect_stdout
from pathlib import Path
from unittest.mock import patch

from typer.testing import CliRunner

from h3gnn.cli.app import app

ROOT = Path(__file__).parents[1]
FUNCTIONS = """
h3gnn() { "$PYTHON" -c 'from h3gnn.cli import main; main()' "$@"; }
python() { "$PYTHON" "$@"; }
"""
"""Let the commands use this Python, whether or not h3gnn is installed as a command."""


def shell_blocks(text: str) -> list[str]:
    """Return the contents of the shell blocks of a page."""
    return re.findall(r"^```(?:sh|bash|console)\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


def run_in_shell(commands: str, folder: Path) -> str:
    """Run commands in bash and return their output."""
    path = os.pathsep.join(part for part in (str(ROOT / "src"), os.environ.get("PYTHONPATH")) if part)
    ours = {"PYTHON": sys.executable, "PYTHONPATH": path, "COLUMNS": "90", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", FUNCTIONS + commands],
        cwd=folder,
        env={**os.environ, **ours},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def run_in_process(commands: str, folder: Path) -> str:
    """Run `h3gnn` and `python FILE` in this process and all other commands in bash; return their output."""
    output, others = "", ""
    for line in commands.replace("\\\n", " ").splitlines(keepends=True):
        if not line.startswith(("h3gnn ", "python ")):
            others += line
            continue
        if others.strip():
            output += run_in_shell(others, folder)
        others = ""
        program, *arguments = shlex.split(line, comments=True)
        with chdir(folder):
            output += _invoke(arguments) if program == "h3gnn" else _run_python(arguments)
    return output + (run_in_shell(others, folder) if others.strip() else "")


def _invoke(arguments: list[str]) -> str:
    result = CliRunner(env={"COLUMNS": "90"}).invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def _run_python(arguments: list[str]) -> str:
    printed = io.StringIO()
    with redirect_stdout(printed), patch.object(sys, "argv", arguments):
        if arguments[0] == "-c":
            exec(compile(arguments[1], "<command>", "exec"), {"__name__": "__main__"})
        else:
            with patch.object(sys, "path", [str(Path(arguments[0]).resolve().parent), *sys.path]):
                runpy.run_path(arguments[0], run_name="__main__")
    return printed.getvalue()
