"""Progress bars of commands."""

from __future__ import annotations

import io
import sys
import time

import pytest

from h3gnn.cli.output import stages
from h3gnn.resources import progress


class Terminal(io.StringIO):
    """A text stream that passes for a terminal."""

    def isatty(self) -> bool:
        return True


def open_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Make standard error a terminal; not as a fixture, after which pytest replaces it again."""
    terminal = Terminal()
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", terminal)
    return terminal


@pytest.mark.parametrize("counted", [True, False])
def test_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch, counted: bool) -> None:
    terminal = open_terminal(monkeypatch)
    with progress(counted=counted) as add_bar:
        bar = add_bar("trials", None)
        bar(completed=3, total=4, note="best 0.9")
    for words in ("trials", "best 0.9", "3/4" if counted else "75%"):
        assert words in terminal.getvalue()


def test_the_bar_of_a_stage_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = open_terminal(monkeypatch)
    with stages() as stage:
        stage("linear probe", 0.25)
        before, waited = len(terminal.getvalue()), 0.0
        while len(terminal.getvalue()) == before and waited < 10:
            time.sleep(0.05)
            waited += 0.05
        assert waited < 10
    for words in ("linear probe", "25%", "100%"):
        assert words in terminal.getvalue()


def test_without_a_terminal_there_is_no_bar(capsys: pytest.CaptureFixture[str]) -> None:
    with progress() as add_bar:
        add_bar("features", 1.0)(completed=0.5)
    with stages() as stage:
        stage("k-means", 0.5)
    assert capsys.readouterr().err == ""
