"""Running commands beside each other, and what the tests know of the Mosquitto they run on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

WAIT_S = 120


class Mosquitto(NamedTuple):
    open: int
    guarded: int
    """Lets bob in with the password `secret`; he may read but not write."""
    websocket: int
    socket: Path


def start(*words: object) -> subprocess.Popen[bytes]:
    """`sterna ...` or `mosquitto_... ...` as a process of its own, stdout and stderr kept."""
    command = [str(word) for word in words]
    if command[0] == "sterna":
        command = [sys.executable, "-m", *command]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("STERNA_")}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=environment)


def run(*words: object, given: bytes = b"") -> tuple[int, bytes, str]:
    """Exit status, stdout and stderr of a command."""
    process = start(*words)
    out, err = process.communicate(given, timeout=WAIT_S)
    return process.returncode, out, err.decode()
