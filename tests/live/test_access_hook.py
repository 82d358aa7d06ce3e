"""The access hook of a real node: a function in a process of its own, or an HTTP service, says who comes in and what
they may do.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from sterna.cli.main import main

from .clients import Refused
from .conftest import Join
from .nodes import LiveNode, wait_until

pytestmark = pytest.mark.slow

MODULE = """
import time

def check(question):
    if question["user"] == "slow":
        time.sleep(3600)
    if question["password"] != "secret":
        return {"result": "deny"}
    return {"result": "allow", "rules": [{"filters": ["of/%u/#"]}]}
"""
TOML = """
[authentication.hook]
call = "rules:check"
directory = "."
time_out_s = 20
cache_s = 0
[authorization]
default = "deny"
[admin]
bind = "127.0.0.1:0"
"""
NOT_AUTHORIZED = 0x87


def test_a_function_decides_who_comes_in_and_what_waits_is_kept(tmp_path: Path, join: Join) -> None:
    (tmp_path / "rules.py").write_text(MODULE)
    with LiveNode(tmp_path, TOML) as node:
        with pytest.raises(Refused) as refused:
            join(node, username="ann", password="wrong")
        assert refused.value.code == NOT_AUTHORIZED
        with pytest.raises(Refused):
            join(node)
        client = join(node, client_id="reader", username="ann", password="secret", persistent=True)
        client.subscribe("of/ann/#", 1)
        assert client.publish("of/bob/x", b"", 1) == NOT_AUTHORIZED
        client.close()
        node.kill()
        node.start()
        writer = join(node, client_id="writer", username="ann", password="secret")
        writer.publish("of/ann/kept", b"1", 1)
        client = join(node, client_id="reader", username="ann", password="secret", persistent=True)
        wait_until(lambda: [message.payload for message in client.messages] == [b"1"], "what waited has come")
        (tmp_path / "rules.py").write_text(MODULE.replace("secret", "other"))
        node.file.write_text(node.file.read_text().replace("time_out_s = 20", "time_out_s = 21"))
        before = len(node.events("reloaded"))
        node.hang_up()
        wait_until(lambda: len(node.events("reloaded")) > before, "the node has read its configuration again")
        join(node, username="ann", password="other")
        assert writer.publish("of/ann/more", b"2", 1) == 0, "who was let in stays"


# -- by HTTP --

_BY_HTTP = """
[authentication.hook]
url = "http://127.0.0.1:{port}/access"
token_file = "{token}"
time_out_s = 20
cache_s = {cache_s}
[authorization]
default = "deny"
[admin]
bind = "127.0.0.1:0"
"""
GRANTED = {"result": "allow", "rules": [{"filters": ["of/%u/#"]}]}
SECRET = "the hook's own token"


class Service:
    """An HTTP service that says of each user what it was told to say."""

    def __init__(self) -> None:
        self.answers: dict[str, dict[str, Any]] = {}
        self.asked: list[dict[str, Any]] = []
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                question = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                service.asked.append(question)
                known = self.headers["Authorization"] == f"Bearer {SECRET}"
                body = json.dumps(service.answers.get(question["user"], {"result": "deny"})).encode()
                self.send_response(200 if known else 401)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_words: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def times_asked(self, user: str) -> int:
        return sum(question["user"] == user for question in self.asked)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def service() -> Iterator[Service]:
    service = Service()
    yield service
    service.close()


def test_an_http_service_decides_and_a_kick_makes_its_new_answer_count(
    service: Service, tmp_path: Path, join: Join
) -> None:
    """A client that is connected is asked about again when it comes back, so an operator sends it away."""
    (tmp_path / "token").write_text(SECRET)
    service.answers = {"ann": GRANTED}
    with LiveNode(tmp_path, _BY_HTTP.format(port=service.port, token=tmp_path / "token", cache_s=0)) as node:
        with pytest.raises(Refused) as refused:
            join(node, username="bob", password="b")
        assert refused.value.code == NOT_AUTHORIZED
        ann = join(node, client_id="ann's", username="ann", password="a")
        assert service.asked[-1] | {"address": ""} == {
            "client": "ann's", "user": "ann", "password": "a", "certificate": None, "address": "", "node": "live",
        }  # fmt: skip
        assert ann.publish("of/ann/x", b"", 1) in (0, 0x10)
        assert ann.publish("of/bob/x", b"", 1) == NOT_AUTHORIZED

        del service.answers["ann"]
        assert ann.publish("of/ann/x", b"", 1) in (0, 0x10), "nobody has asked about it since it came"
        assert kick(node, "ann's") == 0
        ann.wait_for_end()
        before = service.times_asked("ann")
        with pytest.raises(Refused) as refused:
            join(node, client_id="ann's", username="ann", password="a")
        assert refused.value.code == NOT_AUTHORIZED
        assert service.times_asked("ann") == before + 1


def test_an_answer_with_an_end_ends_the_connection_and_is_asked_for_again(
    service: Service, tmp_path: Path, join: Join
) -> None:
    """Although answers are kept for an hour."""
    (tmp_path / "token").write_text(SECRET)
    service.answers = {"ann": GRANTED, "eve": GRANTED | {"expires_s": 1}}
    with LiveNode(tmp_path, _BY_HTTP.format(port=service.port, token=tmp_path / "token", cache_s=3600)) as node:
        for _ in range(2):
            join(node, username="ann", password="a", client_id="ann's").close()
        assert service.times_asked("ann") == 1
        eve = join(node, client_id="eve's", username="eve", password="e")
        assert eve.wait_for_end() == NOT_AUTHORIZED
        service.answers["eve"] = {"result": "deny"}
        with pytest.raises(Refused):
            join(node, client_id="eve's", username="eve", password="e")


def kick(node: LiveNode, client_id: str) -> int:
    with pytest.raises(SystemExit) as end:
        main(["kick", client_id, "--admin", node.admin])
    return int(end.value.code or 0)
