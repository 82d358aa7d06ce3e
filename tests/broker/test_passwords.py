"""The password file: its lines, its errors, and equal work for the known and the unknown."""

from __future__ import annotations

import random

import argon2
import pytest

from sterna.broker.access import passwords
from sterna.broker.access.passwords import REMEMBERED_S, PasswordFile, hash_password
from sterna.broker.access.scram import METHODS
from sterna.vocabulary.errors import ConfigurationError

CHEAP = argon2.PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
PINCH = random.Random(7).randbytes


def line(user: str, password: str, *scram_methods: str) -> str:
    return hash_password(
        user, password, random_bytes=PINCH, scram_methods=scram_methods, scram_iterations=4096, hasher=CHEAP
    )


ANN = line("ann", "pencil")
FULL = line("bob", "eraser", *METHODS)
STORED = FULL.split(":")[2]


def count_argon2_runs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The hashes that argon2 really worked on."""
    runs: list[str] = []
    work = passwords._verify_argon2

    def counted(encoded: str, password: bytes) -> bool:
        runs.append(encoded)
        return work(encoded, password)

    monkeypatch.setattr(passwords, "_verify_argon2", counted)
    return runs


def test_a_line_that_was_hashed_admits_its_password_and_no_other() -> None:
    file = PasswordFile.parse(f"# users\n\n{ANN}\r\n  {FULL}  \n", "users")
    assert len(file) == 2
    assert file.verify("ann", b"pencil", now=0.0)
    assert file.verify("bob", b"eraser", now=0.0)
    assert not file.verify("ann", b"eraser", now=0.0)
    assert not file.verify("ann", b"", now=0.0)


def test_the_recommended_hash_is_argon2id_and_salts_differ() -> None:
    lines = {hash_password("ann", "pencil", random_bytes=PINCH) for _ in range(2)}
    assert len(lines) == 2
    assert all(text.startswith("ann:$argon2id$v=19$m=65536,") for text in lines)


def test_scram_is_offered_only_if_a_user_has_it() -> None:
    assert not PasswordFile.parse(ANN, "users").offers("SCRAM-SHA-256")
    file = PasswordFile.parse(line("bob", "x", "SCRAM-SHA-512"), "users")
    assert [file.offers(method) for method in (*METHODS, "SCRAM-SHA-1", "")] == [False, True, False, False]


def test_a_user_with_scram_alone_has_no_password_to_send() -> None:
    file = PasswordFile.parse(f"bob:{STORED}", "users")
    assert not file.verify("bob", b"eraser", now=0.0)


@pytest.mark.parametrize("text", [ANN, f"bob:{STORED}", ""])
def test_an_unknown_user_costs_one_run_of_the_same_parameters(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    file = PasswordFile.parse(text, "users")
    runs = count_argon2_runs(monkeypatch)
    assert not file.verify("nobody", b"pencil", now=0.0)
    assert len(runs) == 1
    usual = ANN.split(":")[1] if text == ANN else argon2.PasswordHasher().hash("x")
    assert argon2.extract_parameters(runs[0]) == argon2.extract_parameters(usual)


def test_an_unknown_user_stays_out_even_if_the_decoy_fitted(monkeypatch: pytest.MonkeyPatch) -> None:
    file = PasswordFile.parse(ANN, "users")
    monkeypatch.setattr(passwords, "_verify_argon2", lambda encoded, password: True)
    assert not file.verify("nobody", b"pencil", now=0.0)
    assert not file.remembers("nobody", b"pencil", now=0.0)


def test_a_proven_password_is_remembered_for_a_while_and_then_proven_again(monkeypatch: pytest.MonkeyPatch) -> None:
    file = PasswordFile.parse(ANN, "users")
    runs = count_argon2_runs(monkeypatch)
    assert not file.remembers("ann", b"pencil", now=0.0)
    assert file.verify("ann", b"pencil", now=0.0)
    assert file.verify("ann", b"pencil", now=REMEMBERED_S - 1)
    assert len(runs) == 1
    assert not file.remembers("ann", b"pencil", now=REMEMBERED_S)
    assert file.verify("ann", b"pencil", now=REMEMBERED_S)
    assert len(runs) == 2


def test_failures_are_never_remembered_and_remembering_admits_no_other_password(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = PasswordFile.parse(ANN, "users")
    assert file.verify("ann", b"pencil", now=0.0)
    runs = count_argon2_runs(monkeypatch)
    for _ in range(2):
        assert not file.verify("ann", b"wrong", now=1.0)
        assert not file.verify("nobody", b"pencil", now=1.0)
    assert len(runs) == 4
    assert file.remembers("ann", b"pencil", now=1.0)
    assert not file.remembers("ann", b"", now=1.0)


def test_a_replaced_file_remembers_nothing() -> None:
    assert PasswordFile.parse(ANN, "users").verify("ann", b"pencil", now=0.0)
    assert not PasswordFile.parse(ANN, "users").remembers("ann", b"pencil", now=0.0)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("ann", "no `:`"),
        ("ann:", "must start with"),
        ("ann:pencil", "must start with"),
        ("ann:$2b$12$abc", "must start with"),
        (ANN.replace("argon2id", "argon2i"), "must start with"),
        (f"ann:{STORED.replace('sha-256', 'sha-1')}", "must start with"),
        ("ann:$argon2id$oops", "damaged"),
        (ANN[:-3] + "!!!", "damaged"),
        (ANN.rsplit("$", 1)[0] + "$AAAA", "cut short"),
        (f"{ANN}:{ANN.split(':')[1]}", "two argon2id"),
        (f"{FULL}:{STORED}", "two scram-sha-256"),
        (f"ann:{STORED}$x", "not of the form"),
        (f"ann:{STORED.replace('$4096$', '$many$')}", "must be a number"),
        (f"ann:{STORED[:-3]}", "base64"),
        (f"ann:{STORED.replace('$4096$', '$1$')}", "at least 4096 iterations"),
        (f"ann:{STORED.replace('sha-256', 'sha-512')}", "64 bytes"),
        (f":{STORED}", "user name ''"),
        (f"*:{STORED}", "user name '\\*'"),
        (f"anonymous:{STORED}", "user name 'anonymous'"),
        (f"a\tb:{STORED}", "user name"),
        (f"bob :{STORED}", "user name 'bob '"),
        (f"{ANN}\n{ANN}", "line 3: user 'ann' appears a second time"),
    ],
)
def test_a_bad_line_is_named_with_its_number_and_without_its_secret(text: str, complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=complaint) as caught:
        PasswordFile.parse(f"# users\n{text}\n", "/etc/users")
    assert str(caught.value).startswith("/etc/users, line ")
    assert text.rsplit("$", 1)[-1] not in str(caught.value) or "$" not in text


@pytest.mark.parametrize("user", ["", "*", "anonymous", "a:b", "#a", " a", "a\n"])
def test_a_name_that_the_file_cannot_hold_is_not_hashed(user: str) -> None:
    with pytest.raises(ValueError, match="user name"):
        line(user, "pencil")


def test_a_password_that_cannot_be_used_is_not_hashed() -> None:
    with pytest.raises(ValueError, match="empty"):
        line("ann", "")
    with pytest.raises(ValueError, match="SCRAM-SHA-256: control characters"):
        line("ann", "bell\a", "SCRAM-SHA-256")
    with pytest.raises(ValueError, match="SCRAM-MD5"):
        line("ann", "pencil", "SCRAM-MD5")
