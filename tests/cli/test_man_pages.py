"""Manual pages: one for each command, with what its help says, and readable by man."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from live.left_out import leave_out
from sterna.cli.main import COMMANDS
from sterna.cli.man_pages import main, pages


def test_every_command_has_a_page_with_its_options() -> None:
    found = dict(pages())
    assert {f"sterna-{command}.1" for command in COMMANDS} <= set(found)
    ban = found["sterna-ban.1"]
    assert "\\fB\\-\\-address IP\\fR\nAn address, or a network such as 192.0.2.0/24." in ban
    assert "sterna\\-access\\-set(1)" in found["sterna-access.1"]
    for name, text in found.items():
        assert text.startswith(".TH "), name
        assert ".SH DESCRIPTION\n\n" not in text, f"{name} says nothing"


def test_man_reads_them_without_a_warning(tmp_path: Path) -> None:
    if shutil.which("groff") is None:
        leave_out("there is no groff; as root: apt-get install groff-base")
    main(str(tmp_path))
    run = subprocess.run(
        ["groff", "-man", "-Tutf8", "-ww", "-z", *sorted(tmp_path.iterdir())],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert (run.returncode, run.stderr) == (0, "")
