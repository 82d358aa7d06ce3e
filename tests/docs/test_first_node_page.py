"""docs/first-node.md is executed from its first line to its last, with ports of this machine in place of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from live.nodes import wait_until
from sterna.measure.harness.ports import free_port

PAGE = Path(__file__).parents[2] / "docs/first-node.md"
FENCE = re.compile(r"^```(sh|toml|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NODE = "sterna node --config node.toml\n"
STERNA = (sys.executable, "-m", "sterna")

pytestmark = pytest.mark.slow


def test_the_commands_of_the_page_do_what_it_says(tmp_path: Path) -> None:
    """Each block prints the text block behind it, and nothing if there is none."""
    admin = f"127.0.0.1:{free_port()}"
    blocks = FENCE.findall(PAGE.read_text().replace("8883", str(free_port())))
    printed = ""
    with ExitStack() as stack:
        for kind, text in blocks:
            if kind == "text":
                assert printed == text
                printed = ""
                continue
            assert printed == "", "the page shows what a command prints"
            if kind == "toml":
                (tmp_path / "node.toml").write_text(text)
            elif text.endswith(NODE):
                assert 'default = "deny"' in run(text.removesuffix(NODE), tmp_path, admin)
                log = stack.enter_context(serving(tmp_path, admin))
            else:
                printed = run(text, tmp_path, admin)
        assert printed == ""
        assert log.read_text().count("publish denied") == 1


@contextmanager
def serving(folder: Path, admin: str) -> Iterator[Path]:
    log = folder / "log"
    environment = os.environ | {"STERNA_ADMIN_BIND": admin}
    with (
        log.open("wb") as out,
        subprocess.Popen([*STERNA, *NODE.split()[1:]], cwd=folder, stdout=out, stderr=out, env=environment) as node,
    ):
        try:
            wait_until(lambda: "admin port" in log.read_text() or node.poll() is not None, "the node serves")
            assert node.poll() is None, log.read_text()
            yield log
        finally:
            node.terminate()
    assert node.returncode == 0


def run(script: str, folder: Path, admin: str) -> str:
    """The output of its commands.  Warnings of OpenSSL about its randomness do not count."""
    known = f'sterna() {{ case "$1" in access|reload) set -- "$@" --admin {admin};; esac; {" ".join(STERNA)} "$@"; }}\n'
    done = subprocess.run(["bash", "-c", known + script], cwd=folder, capture_output=True, text=True, timeout=120)
    warnings = [line for line in done.stderr.splitlines(keepends=True) if line.startswith("Warning: ")]
    assert done.returncode == 0 or warnings, done.stderr
    return done.stdout + "".join(warnings)
