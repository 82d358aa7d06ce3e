"""A node with an imported configuration beside the Mosquitto whose configuration it was: same users, same answers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from sterna.measure.harness.ports import free_port
from sterna.measure.harness.processes import Process, answers

from .left_out import leave_out
from .nodes import wait_until

TOPICS = (
    "open/a",
    "open/secret",
    "site/1/temp",
    "site/2/temp",
    "home/ann",
    "home/bob",
    "home/none",
    "x y/z",
    "write/only",
)
USERS = {"admin": "all of it", "ann": "a", "bob": "b", "eve": "e"}
BAD_LOGINS = (("ann", "wrong"), ("nobody", "x"), ("ann", None))
ACL = """
# for clients without a name
topic read open/#
topic deny open/secret
topic read done/none

user admin
topic #

user ann
topic deny site/2/#
topic read site/+/temp
topic write write/only
topic readwrite open/#

user bob
topic site/2/temp
topic read x y/z
topic deny home/bob

pattern readwrite home/%u
pattern read done/%u
pattern deny open/secret
"""
STYLES = {
    "one listener": (
        "allow_anonymous true\npassword_file {directory}/users\nacl_file {directory}/acl\nlistener {port} 127.0.0.1\n"
    ),
    "port and bind_address, nobody without a name": (
        "port {port}\nbind_address 127.0.0.1\nallow_anonymous false\n"
        "password_file {directory}/users\nacl_file {directory}/acl\nmax_inflight_messages 20\npersistence true\n"
    ),
    "settings of each listener": (
        "per_listener_settings true\nlistener {port} 127.0.0.1\nallow_anonymous true\n"
        "password_file {directory}/users\nacl_file {directory}/acl\n"
    ),
    "users without rules": "password_file {directory}/users\nlistener {port} 127.0.0.1\nmax_queued_messages 100\n",
}


class Speaker:
    """mosquitto_pub and mosquitto_sub at one broker."""

    def __init__(self, port: int, directory: Path) -> None:
        self._port = port
        self._directory = directory

    def words(self, program: str, user: str | None, password: str | None) -> list[str]:
        words = [program, "-h", "127.0.0.1", "-p", str(self._port), "-V", "311"]
        words += ["-u", user] if user is not None else []
        return words + (["-P", password] if password is not None else [])

    def publish(self, user: str | None, topic: str, text: str) -> int:
        words = self.words("mosquitto_pub", user, USERS.get(user or ""))
        return subprocess.run([*words, "-t", topic, "-m", text, "-q", "1"], capture_output=True, check=False).returncode

    def login(self, user: str | None, password: str | None) -> bool:
        words = self.words("mosquitto_pub", user, password)
        done = subprocess.run([*words, "-t", "done/none", "-m", "-"], capture_output=True, check=False)
        return done.returncode == 0

    @contextmanager
    def subscribed(self, user: str | None, filters: Sequence[str]) -> Iterator[Path]:
        """The file its lines go to, once a message has come."""
        done = f"done/{user or 'none'}"
        file = self._directory / f"{user}-{self._port}"
        with file.open("wb") as output:
            words = [*self.words("mosquitto_sub", user, USERS.get(user or "")), "-v", "-q", "1"]
            for one in (*filters, done):
                words += ["-t", one]
            reader = subprocess.Popen(words, stdout=output, stderr=output)
        try:
            wait_until(
                lambda: not self.publish("admin", done, "begin") and "begin" in file.read_text(), f"{user} listens"
            )
            yield file
        finally:
            reader.kill()
            reader.wait(60)

    def writes(self, users: Sequence[str | None]) -> set[tuple[str | None, str]]:
        with self.subscribed("admin", ["#"]) as file:
            for user in users:
                for topic in TOPICS:
                    self.publish(user, topic, f"from-{user}")
            self.publish("admin", "done/admin", "end")
            wait_until(lambda: "done/admin end" in file.read_text(), "all has come")
            lines = set(file.read_text().splitlines())
        return {(user, topic) for user in users for topic in TOPICS if f"{topic} from-{user}" in lines}

    def reads(self, users: Sequence[str | None], filters: Sequence[str]) -> set[tuple[str | None, str]]:
        with ExitStack() as stack:
            files = {user: stack.enter_context(self.subscribed(user, filters)) for user in users}
            for topic in TOPICS:
                self.publish("admin", topic, "read")
            for user, file in files.items():
                done = f"done/{user or 'none'}"
                self.publish("admin", done, "end")
                wait_until(lambda file=file, done=done: f"{done} end" in file.read_text(), f"all has come to {user}")  # type: ignore[misc]
            lines = {user: set(file.read_text().splitlines()) for user, file in files.items()}
        return {(user, topic) for user in users for topic in TOPICS if f"{topic} read" in lines[user]}


@pytest.fixture(params=STYLES)
def both(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Speaker, Speaker]]:
    """Mosquitto with the file, and a node with what was made of the same lines for another port."""
    broker = shutil.which("mosquitto", path=f"{os.environ['PATH']}:/usr/sbin")
    if broker is None or shutil.which("mosquitto_pub") is None:
        leave_out("mosquitto and mosquitto-clients are not installed")
    (tmp_path / "users").touch()
    for number, (user, password) in enumerate(USERS.items()):
        kind = ("sha512-pbkdf2", "sha512")[number % 2]
        subprocess.run(["mosquitto_passwd", "-H", kind, "-b", tmp_path / "users", user, password], check=True)
    (tmp_path / "acl").write_text(ACL)
    files = []
    for name in "original", "imported":
        port = free_port()
        location = tmp_path / name
        location.mkdir()
        file = tmp_path / f"{name}.conf"
        told = STYLES[request.param].format(directory=tmp_path, port=port)
        file.write_text(f"user root\npersistence_location {location}/\n{told}")
        files.append((file, port))
    (original, here), (imported, there) = files
    made = tmp_path / "sterna.toml"
    sterna = [sys.executable, "-m", "sterna"]
    subprocess.run([*sterna, "import", imported, "--output", made], check=True, capture_output=True)
    subprocess.run([*sterna, "check-config", made], check=True, capture_output=True)
    with made.open("a") as stream:
        stream.write('\n[admin]\nbind = ""\n')
    theirs = Process("mosquitto", [broker, "-c", str(original)], tmp_path)
    ours = Process("sterna", [*sterna, "node", "--config", str(made)], tmp_path)
    try:
        for process, port in (theirs, here), (ours, there):
            process.start()
            wait_until(lambda port=port: answers("127.0.0.1", port), f"{process.name} answers: {process.last_words()}")  # type: ignore[misc]
        yield Speaker(here, tmp_path), Speaker(there, tmp_path)
    finally:
        for process in theirs, ours:
            process.stop()


@pytest.mark.slow
def test_the_same_users_get_the_same_answers(both: tuple[Speaker, Speaker]) -> None:
    theirs, ours = both
    logins = [*USERS.items(), *BAD_LOGINS, (None, None)]
    admitted = [theirs.login(*login) for login in logins]
    assert [ours.login(*login) for login in logins] == admitted
    users: list[str | None] = [user for (user, _), is_in in zip(logins, admitted, strict=True) if is_in]
    assert set(USERS) <= set(users)
    assert ours.writes(users) == theirs.writes(users)
    for filters in ["#"], list(TOPICS):
        assert ours.reads(users, filters) == theirs.reads(users, filters)
