"""Tasks for workers, in a module that is imported quickly."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def work(task: Any, watch: Callable[[float], None]) -> Any:
    """Do what the name of a task says."""
    name, value = task
    watch(0.5)
    if name == "kill":
        os.kill(os.getpid(), value)
    if name == "exit":
        os._exit(value)
    if name in ("wait", "chatter"):
        Path(value).write_text(str(os.getpid()))
    while name == "chatter":
        watch(0.1)
    if name == "wait":
        time.sleep(120)
    return value
