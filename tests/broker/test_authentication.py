"""Which proof counts when a client offers several, and every way of being refused."""

from __future__ import annotations

import itertools
import random

import argon2
import jwt
import pytest
from scramp import ScramClient

from sterna.broker.access.authentication import Accepted, Authenticator, Challenge, Credentials, Refused
from sterna.broker.access.passwords import PasswordFile, hash_password
from sterna.broker.access.tokens import TokenVerifier

SECRET = b"0123456789abcdef0123456789abcdef"
NOW = 1_000_000.0
CHEAP = argon2.PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
LINE = hash_password(
    "ann", "pencil", random_bytes=random.Random(7).randbytes, scram_methods=["SCRAM-SHA-256"], hasher=CHEAP
)
TOKEN = jwt.encode({"sub": "tom", "exp": NOW + 60}, SECRET, "HS256").encode()
STALE = jwt.encode({"sub": "tom", "exp": NOW - 60}, SECRET, "HS256").encode()

BAD, NOT_AUTHORIZED = 0x86, 0x87


def full() -> Authenticator:
    nonces = map("nonce{}".format, itertools.count())
    return Authenticator(
        passwords=PasswordFile.parse(LINE, "users"),
        tokens=TokenVerifier({"HS256": SECRET}, leeway_s=0),
        certificates=True,
        nonce=lambda: next(nonces),
    )


def shown(
    username: str | None = None, password: bytes | None = None, certificate: str | None = None, anonymous: bool = False
) -> Credentials:
    return Credentials("c1", username, password, certificate, anonymous)


@pytest.mark.parametrize(
    ("credentials", "user"),
    [
        (shown("ann", b"pencil"), "ann"),
        (shown(None, TOKEN), "tom"),
        (shown("tom", TOKEN), "tom"),
        (shown(certificate="cleo"), "cleo"),
        (shown("cleo", certificate="cleo"), "cleo"),
        (shown("cleo", b"whatever", certificate="cleo"), "cleo"),
        (shown(None, TOKEN, certificate="cleo"), "cleo"),
        (shown("ann", b"pencil", certificate=""), "ann"),
        (shown(anonymous=True), None),
        (shown("ann", b"pencil", anonymous=True), "ann"),
    ],
)
def test_the_strongest_proof_names_the_user(credentials: Credentials, user: str | None) -> None:
    outcome = full().verify(credentials, now=NOW)
    assert isinstance(outcome, Accepted)
    assert outcome.user == user


@pytest.mark.parametrize(
    ("credentials", "code"),
    [
        (shown("ann", b"wrong"), BAD),
        (shown("nobody", b"pencil"), BAD),
        (shown("ann", None), BAD),
        (shown("ann", b""), BAD),
        (shown("ann", None, anonymous=True), BAD),
        (shown("", b"", anonymous=True), BAD),
        (shown(None, b"pencil"), BAD),
        (shown(None, b"pencil", anonymous=True), BAD),
        (shown("ann", TOKEN), BAD),
        (shown("tom", STALE), BAD),
        (shown(None, TOKEN[:-6] + b"AAAAAA", anonymous=True), BAD),
        (shown("ann", b"pencil", certificate="cleo"), BAD),
        (shown(certificate="*"), BAD),
        (shown(certificate="cl\0eo"), BAD),
        (shown(), NOT_AUTHORIZED),
    ],
)
def test_everything_else_is_refused(credentials: Credentials, code: int) -> None:
    outcome = full().verify(credentials, now=NOW)
    assert isinstance(outcome, Refused)
    assert outcome.code == code


def test_a_wrong_name_and_a_wrong_password_read_alike() -> None:
    outcomes = {full().verify(shown(*pair), now=NOW) for pair in (("nobody", b"pencil"), ("ann", b"wrong"))}
    assert len(outcomes) == 1


@pytest.mark.parametrize("credentials", [shown("ann", b"pencil"), shown(None, TOKEN), shown("ann")])
def test_without_a_way_to_check_them_credentials_are_refused(credentials: Credentials) -> None:
    assert isinstance(Authenticator().verify(credentials, now=NOW), Refused)


@pytest.mark.parametrize("credentials", [shown("ann", b"pencil", anonymous=True), shown(None, TOKEN, anonymous=True)])
def test_on_an_open_listener_credentials_nobody_can_check_make_nobody_in_particular(credentials: Credentials) -> None:
    assert Authenticator().verify(credentials, now=NOW) == Accepted(None)


def test_a_certificate_counts_only_where_certificates_are_configured() -> None:
    assert isinstance(Authenticator().verify(shown(certificate="cleo"), now=NOW), Refused)


def test_the_end_of_a_token_is_passed_on() -> None:
    assert full().verify(shown(None, TOKEN), now=NOW) == Accepted("tom", expires_at=NOW + 60)


def test_only_an_argon2_run_needs_a_worker() -> None:
    ways = full()
    quick = [shown(), shown("ann"), shown(None, b"x"), shown("tom", TOKEN), shown("ann", b"pencil", certificate="ann")]
    assert not any(ways.needs_worker(credentials, now=NOW) for credentials in quick)
    assert ways.needs_worker(shown("ann", b"pencil"), now=NOW)
    assert ways.needs_worker(shown("nobody", b"pencil"), now=NOW)
    assert ways.needs_worker(shown("ann", b"pencil", certificate=""), now=NOW)
    assert not Authenticator().needs_worker(shown("ann", b"pencil"), now=NOW)


def test_a_reconnect_needs_no_worker_until_the_proof_grows_old() -> None:
    ways = full()
    assert isinstance(ways.verify(shown("ann", b"pencil"), now=NOW), Accepted)
    assert not ways.needs_worker(shown("ann", b"pencil"), now=NOW + 1)
    assert ways.needs_worker(shown("ann", b"wrong"), now=NOW + 1)
    assert ways.needs_worker(shown("ann", b"pencil"), now=NOW + 3600)


def test_a_password_does_not_show_when_credentials_are_printed() -> None:
    assert "pencil" not in repr(shown("ann", b"pencil"))


def test_an_exchange_proves_the_user_with_a_nonce_of_its_own() -> None:
    ways = full()
    for nonce in ("nonce0", "nonce1"):
        exchange = ways.begin_exchange("SCRAM-SHA-256", expected_user="ann")
        assert exchange is not None
        client = ScramClient(["SCRAM-SHA-256"], "ann", "pencil", c_nonce="mine")
        challenge = exchange.step(client.get_client_first().encode())
        assert isinstance(challenge, Challenge)
        assert challenge.data.startswith(f"r=mine{nonce},".encode())
        client.set_server_first(challenge.data.decode())
        outcome = exchange.step(client.get_client_final().encode())
        assert isinstance(outcome, Accepted)
        assert outcome.user == "ann"


def test_a_method_that_nobody_can_use_is_not_offered() -> None:
    for method in ("SCRAM-SHA-512", "SCRAM-SHA-1", "PLAIN", ""):
        assert full().begin_exchange(method) is None
    passwords = PasswordFile.parse(LINE, "users")
    assert Authenticator(passwords=passwords).begin_exchange("SCRAM-SHA-256") is None
    assert Authenticator(nonce=lambda: "n").begin_exchange("SCRAM-SHA-256") is None
