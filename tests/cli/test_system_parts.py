"""`scripts/system-parts` as root installs programs and starts no service.

It is run as root would, with an apt-get of the test's own on the PATH, which notes what Debian's would have found.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "system-parts"

#: Debian's asks the policy before it starts the service of a package.
APT = """#!/bin/sh
[ "$1" = install ] || exit 0
"{policy}" mosquitto start; echo "apt-get $* policy $?" >>"{notes}"
{then}
"""
ROOT = "#!/bin/sh\necho 0\n"
SYSTEMCTL = '#!/bin/sh\necho "systemctl $*" >>"{notes}"\n'


def program(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)


class Machine:
    """A PATH without Mosquitto, where we are root."""

    def __init__(self, folder: Path, then: str) -> None:
        self.policy, self.notes, self.programs = folder / "policy-rc.d", folder / "notes", folder / "bin"
        self.programs.mkdir()
        for needed in ("sh", "mv", "rm", "chmod", "sleep"):
            (self.programs / needed).symlink_to(f"/bin/{needed}")
        for there in ("java", "gcc"):
            program(self.programs, there, "#!/bin/sh\n")
        program(self.programs, "python3", f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
        program(self.programs, "id", ROOT)
        program(self.programs, "systemctl", SYSTEMCTL.format(notes=self.notes))
        program(self.programs, "apt-get", APT.format(policy=self.policy, notes=self.notes, then=then))

    def run(self, *parts: str) -> subprocess.CompletedProcess[str]:
        environment = {"PATH": str(self.programs), "STERNA_POLICY_RC": str(self.policy), "HOME": os.environ["HOME"]}
        script = SCRIPT.read_text().replace("/usr/sbin/$1", "/nowhere/$1")
        return subprocess.run(
            ["/bin/sh", "-c", script, SCRIPT, *parts],
            env=environment,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )

    def noted(self) -> list[str]:
        return self.notes.read_text().splitlines()


@pytest.mark.parametrize("before", [None, "#!/bin/sh\nexit 104\n"])
@pytest.mark.parametrize("then", ["exit 0", "exit 100", "kill -TERM $PPID; sleep 1"])
def test_no_service_is_started_and_the_policy_is_as_before(tmp_path: Path, before: str | None, then: str) -> None:
    machine, works = Machine(tmp_path, then), then == "exit 0"
    if before is not None:
        program(tmp_path, "policy-rc.d", before)
    done = machine.run()
    assert (done.returncode == 0) is works, done.stderr
    assert done.returncode != -signal.SIGTERM
    installed = [line for line in machine.noted() if line.startswith("apt-get install")]
    assert "mosquitto" in installed[0]
    assert [line.rpartition(" ")[2] for line in installed] == ["101"] * len(installed)
    assert ("systemctl disable -q mosquitto" in machine.noted()) is works
    assert (machine.policy.read_text() if machine.policy.exists() else None) == before
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith("policy")) == (
        [] if before is None else ["policy-rc.d"]
    )


def test_what_only_tests_need_is_installed_for_them_alone(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "exit 0")
    wanted = {"chromium", "systemd", "groff-base"}
    for parts, expected in ((), set()), (("tests",), wanted):
        assert machine.run(*parts).returncode == 0
        noted = [word for line in machine.noted() for word in line.split()]
        assert wanted & set(noted) == expected
