"""A real node on a machine whose clock is wrong, then right."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from .conftest import Join
from .nodes import LiveNode

DAY_S = 86_400

#: The command line, told another time of day than it is.
PROGRAM = """
import sys, time
error_s = float(sys.argv.pop(1))
right = time.time
time.time = lambda: right() + error_s
from sterna.cli.main import main
main()
"""


class MisledNode(LiveNode):
    def set_clock(self, error_s: float) -> None:
        self.program = (sys.executable, "-c", PROGRAM, str(error_s))


@pytest.mark.parametrize("errors_s", [(-DAY_S, 0), (0, -DAY_S), (0, DAY_S)])
def test_a_session_outlives_a_clock_that_is_set_by_a_day_between_two_starts(
    tmp_path: Path, join: Join, errors_s: tuple[int, int]
) -> None:
    node = MisledNode(tmp_path)
    node.set_clock(errors_s[0])
    with node:
        reader = join(node, client_id="reader", version=5, persistent=True, connect={"SessionExpiryInterval": 7200})
        reader.subscribe("a", 1)
        reader.vanish()
        assert join(node, client_id="writer").publish("a", b"waits", 1) == 0
        assert node.stop() == 0
        node.set_clock(errors_s[1])
        node.restart()
        again = join(node, client_id="reader", version=5, persistent=True, connect={"SessionExpiryInterval": 7200})
        assert again.session_present
        assert again.payloads(1) == [b"waits"]
        told = [event["seconds"] for event in node.events("the clock was set back")]
        assert [round(seconds / DAY_S) for seconds in told] == ([1] if errors_s[1] < errors_s[0] else [])
        assert round(node.events("node starting")[-1]["away_s"] / DAY_S) == (errors_s[1] - errors_s[0]) // DAY_S
