"""Bars and files that commands share."""

from __future__ import annotations

import io
import sys
import time

import pytest

from h3gnn.cli.output import stages
from h3gnn.resources import progress


class Terminal(io.StringIO):
    """A text stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("counted", [True, False])
def test_a_bar_shows_what_is_done_on_a_terminal(monkeypatch: pytest.MonkeyPatch, counted: bool) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with progress(counted=counted) as add_bar:
        bar = add_bar("trials", None)
        bar(completed=3, total=4, note="best 0.9")
    assert "trials" in terminal.getvalue()
    assert "best 0.9" in terminal.getvalue()
    assert ("3/4" if counted else "75%") in terminal.getvalue()


def test_elsewhere_a_bar_shows_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with progress() as add_bar:
        add_bar("features", 1.0)(completed=0.5)
    assert capsys.readouterr().err == ""


def test_the_stages_of_a_command_are_told_and_the_bar_moves_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with stages() as told:
        told("linear probe", 0.25)
        before, waited = len(terminal.getvalue()), 0.0
        while len(terminal.getvalue()) == before and waited < 10:  # nothing is told, and yet it is drawn anew
            time.sleep(0.05)
            waited += 0.05
        assert waited < 10
    for words in ("linear probe", "25%", "100%"):
        assert words in terminal.getvalue()


def test_stages_that_nobody_sees_say_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    for show in (True, False):
        with stages(show=show) as told:
            told("k-means", 0.5)
    assert capsys.readouterr().err == ""
