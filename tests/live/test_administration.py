"""`sterna ban`, `users` and `access` with real nodes: a lone one, and three of which one was killed meanwhile."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from .clients import Refused
from .conftest import Join
from .networks import LiveNetwork
from .nodes import LiveNode, wait_until

pytestmark = pytest.mark.slow

BANNED, BAD_PASSWORD, NOT_AUTHORIZED = 0x8A, 0x86, 0x87


def sterna(*words: str, stdin: str = "", status: int = 0) -> str:
    run = subprocess.run(
        [sys.executable, "-m", "sterna", *words], input=stdin, capture_output=True, text=True, timeout=240
    )
    assert run.returncode == status, run.stderr
    return run.stdout if status == 0 else run.stderr


def try_to_join(
    join: Join, node: LiveNode, client_id: str, user: str | None = None, password: str | None = None
) -> int:
    """The code of the refusal; 0 if there is none."""
    try:
        join(node, client_id=client_id, username=user, password=password)
    except Refused as refused:
        return refused.code
    return 0


def test_bans_users_and_rules_at_a_lone_node(node: LiveNode, join: Join, client_id: str, topic: str) -> None:
    admin = ("--admin", node.admin)
    client = join(node, client_id=client_id)
    said = sterna("ban", "--client", client_id, "--for", "2h", "--reason", "too loud", *admin)
    assert said.endswith("done, 1 client disconnected\n")
    client.close()
    assert try_to_join(join, node, client_id) == BANNED
    line = next(line for line in sterna("ban", *admin).splitlines() if client_id in line)
    assert line.startswith(f"client:{client_id}\t7,")
    assert line.endswith(" s left\ttoo loud")
    sterna("ban", "--client", client_id, "--lift", *admin)
    client = join(node, client_id=client_id)
    sterna("access", "set", client_id, "deny", f"{topic}/#", "--access", "publish", *admin)
    assert client.publish(f"{topic}/a", b"", 1) == NOT_AUTHORIZED
    said = sterna("access", "check", f"{topic}/a", "--client", client_id, *admin)
    assert said == f"denied: rule 1 denies {topic}/#\n"
    assert f"1\tdeny *\tpublish\t{topic}/#\t{client_id}\n" in sterna("access", "list", *admin)
    sterna("access", "remove", client_id, *admin)
    assert client.publish(f"{topic}/a", b"", 1) in (0, 0x10)
    assert "no span of time" in sterna("ban", "--client", "x", "--for", "soon", *admin, status=1)
    assert "name whom" in sterna("ban", "--lift", *admin, status=1)
    assert "no IP address" in sterna("ban", "--address", "nowhere", *admin, status=1)


def test_a_revoked_user_is_gone_at_every_node_and_one_that_was_down_hears_of_it(tmp_path: Path, join: Join) -> None:
    with LiveNetwork(tmp_path, ("ab", "bc")) as network:
        a, b, c = (network[name] for name in "abc")
        admin = ("--admin", a.admin)
        assert sterna("users", "set", "ann", *admin, stdin="one\n").count("done") == 3
        clients = [join(node, client_id=f"at-{node.admin}", username="ann", password="one") for node in (a, b, c)]
        assert try_to_join(join, c, "x", "ann", "two") == BAD_PASSWORD
        rows = json.loads(sterna("users", "list", "--json", "--admin", c.admin))["rows"]
        assert [(row["user"], row["barred"], row["at_node"]) for row in rows] == [("ann", False, "a")]
        c.kill()
        said = json.loads(sterna("users", "bar", "ann", "--json", "--admin", b.admin))
        assert sum(row["disconnected"] for row in said["rows"]) == 2
        for client in clients:
            client.close()
        for node in (a, b):
            assert try_to_join(join, node, "x", "ann", "one") == BAD_PASSWORD
        a.kill()
        a.start()
        assert try_to_join(join, a, "x", "ann", "one") == BAD_PASSWORD
        c.start()
        wait_until(
            lambda: json.loads(sterna("users", "list", "--json", "--admin", c.admin))["rows"][0]["barred"],
            "the node that was down has heard that the user is barred",
        )
        assert try_to_join(join, c, "x", "ann", "one") == BAD_PASSWORD
        sterna("users", "reset", "ann", *admin)
        assert try_to_join(join, b, "x", "ann", "anything") == 0
        network.check_logs()


def test_an_evacuation_says_where_to_look_when_a_session_cannot_go(tmp_path: Path, join: Join) -> None:
    """The user of the session is gone, so no other node would let its client in."""
    with LiveNetwork(tmp_path, ("ab",)) as network:
        a, b = network["a"], network["b"]
        admin = ("--admin", b.admin)
        sterna("users", "set", "ann", *admin, stdin="one\n")
        join(b, client_id="of-ann", username="ann", password="one", persistent=True).close()
        sterna("users", "reset", "ann", *admin)
        sterna("evacuate", "b", "--no-wait", *admin)

        def said() -> str:
            return sterna("evacuate", "b", "--no-wait", *admin)

        wait_until(lambda: "attempts failed (`sterna migrations` says why)" in said(), "it has been tried")
        assert "of-ann\tto a\tnot moved: it does not know user ann\t" in sterna("migrations", *admin)
        sterna("users", "set", "ann", "--admin", a.admin, stdin="one\n")
        assert sterna("evacuate", "b", *admin).startswith("0 of 1 left; 1 moved")
