"""A PostgreSQL server of our own, for as long as it is needed."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SETTINGS = {"fsync": "off", "listen_addresses": "127.0.0.1", "shared_buffers": "16MB"}


class NoServerError(RuntimeError):
    """PostgreSQL cannot run here."""


def programs() -> Path:
    """Return the folder with the programs of the newest installed version."""
    found = [one.parent for one in sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))]
    if not found and (on_path := shutil.which("initdb")):
        found.append(Path(on_path).parent)
    if not found:
        raise NoServerError("PostgreSQL is not installed (Debian: apt-get install postgresql)")
    return found[-1]


@contextmanager
def postgres_server(folder: Path) -> Iterator[str]:
    """Run a server that keeps its data in a folder; return its URL."""
    tools, data = programs(), str(folder / "data")
    user = {} if os.getuid() else _user_for_root(folder)

    def run(program: str, *arguments: str) -> None:
        command = [str(tools / program), "-D", data, *arguments]
        done = subprocess.run(command, check=False, capture_output=True, cwd="/", **user)
        if done.returncode:
            raise NoServerError(f"{program}: {done.stderr.decode(errors='replace').strip()}")

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    run("initdb", "-U", "tester", "-A", "trust", "-N", "-E", "UTF8", "--locale=C")
    settings = {**SETTINGS, "port": port, "unix_socket_directories": folder}
    options = " ".join(f"-c {name}={value}" for name, value in settings.items())
    run("pg_ctl", "-w", "-l", str(folder / "log"), "-o", options, "start")
    try:
        yield f"postgresql://tester@127.0.0.1:{port}/postgres"
    finally:
        run("pg_ctl", "-m", "immediate", "stop")


def _user_for_root(folder: Path) -> dict[str, Any]:
    """Give a folder to a user as whom a server runs, since it refuses to run as root."""
    names = {one.pw_name for one in pwd.getpwall()}
    name = next((one for one in ("postgres", "nobody") if one in names), None)
    if name is None:
        raise NoServerError("PostgreSQL does not run as root, and there is no other user")
    shutil.chown(folder, name)
    for parent in folder.parents[:3]:
        parent.chmod(parent.stat().st_mode | 0o011)
    return {"user": name, "group": pwd.getpwnam(name).pw_gid, "extra_groups": []}
