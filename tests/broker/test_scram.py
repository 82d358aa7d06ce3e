"""SCRAM, talked through with a client written by others and with the conversation printed in RFC 7677."""

from __future__ import annotations

import base64
import random

import argon2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scramp import ScramClient

from sterna.broker.access.identity import BAD_CREDENTIALS, Accepted, Challenge, Refused
from sterna.broker.access.passwords import PasswordFile, hash_password
from sterna.broker.access.scram import MESSAGE_BYTES_MAX, METHODS, Exchange, ScramCredential

CHEAP = argon2.PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)


def users(*names: str) -> PasswordFile:
    pinch = random.Random(7).randbytes
    lines = [
        hash_password(n, f"{n}'s", random_bytes=pinch, scram_methods=METHODS, scram_iterations=4096, hasher=CHEAP)
        for n in names
    ]
    return PasswordFile.parse("\n".join(lines), "users")


FILE = users("ann", "bob")


def converse(exchange: Exchange, client: ScramClient) -> Accepted | Refused:
    challenge = exchange.step(client.get_client_first().encode())
    assert isinstance(challenge, Challenge)
    client.set_server_first(challenge.data.decode())
    outcome = exchange.step(client.get_client_final().encode())
    assert not isinstance(outcome, Challenge)
    return outcome


def challenge_for(name: str, file: PasswordFile = FILE) -> tuple[str, str]:
    """Salt and iterations that somebody with this name is asked to use."""
    challenge = file.begin_exchange("SCRAM-SHA-256", "nonce").step(f"n,,n={name},r=abc".encode())
    assert isinstance(challenge, Challenge)
    _, salt, iterations = challenge.data.decode().split(",")
    return salt, iterations


@pytest.mark.parametrize("method", METHODS)
def test_a_client_with_the_password_is_accepted_and_can_verify_the_server(method: str) -> None:
    client = ScramClient([method], "ann", "ann's")
    outcome = converse(FILE.begin_exchange(method, "nonce"), client)
    assert isinstance(outcome, Accepted)
    assert outcome.user == "ann"
    client.set_server_final(outcome.data.decode())


def test_the_conversation_of_rfc_7677_is_reproduced() -> None:
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    credential = ScramCredential.derive("SCRAM-SHA-256", "pencil", salt, 4096)
    exchange = Exchange("SCRAM-SHA-256", lambda _: (credential, True), "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")
    nonce = "rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    assert exchange.step(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO") == Challenge(
        f"r={nonce},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096".encode()
    )
    final = f"c=biws,r={nonce},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    assert exchange.step(final.encode()) == Accepted("user", data=b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")


def test_a_credential_survives_being_written_down() -> None:
    for method in METHODS:
        credential = ScramCredential.derive(method, "pencil", b"0123456789abcdef", 4096)
        assert ScramCredential.parse(str(credential)) == credential
        assert "stored_key" not in repr(credential)


def test_a_wrong_password_and_an_unknown_user_fail_alike_at_the_last_step() -> None:
    for name in ("ann", "nobody"):
        client = ScramClient(["SCRAM-SHA-256"], name, "guess")
        assert converse(FILE.begin_exchange("SCRAM-SHA-256", "nonce"), client) == BAD_CREDENTIALS


def test_a_stranger_is_asked_with_a_salt_of_its_own_that_never_changes() -> None:
    assert challenge_for("nobody") == challenge_for("nobody", users("ann", "bob"))
    assert len({challenge_for(name)[0] for name in ("nobody", "noone", "ann", "bob")}) == 4
    assert challenge_for("nobody")[1] == challenge_for("ann")[1]
    assert len(challenge_for("nobody")[0]) == len(challenge_for("ann")[0])


def test_a_user_without_a_credential_for_the_method_is_a_stranger_to_it() -> None:
    only_512 = hash_password(
        "eve", "eve's", random_bytes=random.Random(1).randbytes, scram_methods=METHODS[1:], hasher=CHEAP
    )
    with_256 = hash_password(
        "ann", "ann's", random_bytes=random.Random(2).randbytes, scram_methods=METHODS[:1], hasher=CHEAP
    )
    file = PasswordFile.parse(f"{only_512}\n{with_256}", "users")
    client = ScramClient(["SCRAM-SHA-256"], "eve", "eve's")
    assert converse(file.begin_exchange("SCRAM-SHA-256", "nonce"), client) == BAD_CREDENTIALS


def test_a_credential_that_is_not_genuine_admits_nobody_even_with_a_fitting_proof() -> None:
    credential = ScramCredential.derive("SCRAM-SHA-256", "pencil", b"0123456789abcdef", 4096)
    exchange = Exchange("SCRAM-SHA-256", lambda _: (credential, False), "nonce")
    assert converse(exchange, ScramClient(["SCRAM-SHA-256"], "ann", "pencil")) == BAD_CREDENTIALS


def test_only_the_expected_user_succeeds() -> None:
    for expected, outcome in (("ann", Accepted), ("bob", Refused)):
        exchange = FILE.begin_exchange("SCRAM-SHA-256", "nonce", expected)
        assert isinstance(converse(exchange, ScramClient(["SCRAM-SHA-256"], "ann", "ann's")), outcome)


def test_an_exchange_that_ended_stays_ended() -> None:
    exchange = FILE.begin_exchange("SCRAM-SHA-256", "nonce")
    client = ScramClient(["SCRAM-SHA-256"], "ann", "ann's")
    first = client.get_client_first().encode()
    challenge = exchange.step(first)
    assert isinstance(challenge, Challenge)
    client.set_server_first(challenge.data.decode())
    assert exchange.step(b"c=biws,r=other,p=AAAA") == BAD_CREDENTIALS
    assert exchange.step(client.get_client_final().encode()) == BAD_CREDENTIALS
    assert exchange.step(first) == BAD_CREDENTIALS


def test_an_oversized_message_ends_the_exchange() -> None:
    exchange = FILE.begin_exchange("SCRAM-SHA-256", "nonce")
    assert exchange.step(b"x" * (MESSAGE_BYTES_MAX + 1)) == BAD_CREDENTIALS
    assert exchange.step(b"n,,n=ann,r=abc") == BAD_CREDENTIALS


@pytest.mark.parametrize(
    "first",
    [
        b"",
        b"\xff\xfe",
        b"n,,",
        b"n,,n=ann",
        b"n,,n=,r=abc",
        b"n,,n=a=b,r=abc",
        b"n,a=bob,n=ann,r=abc",
        b"p=tls-unique,,n=ann,r=abc",
        b"n,,m=x,n=ann,r=abc",
        b"n,,n=ann,r=" + b"a" * MESSAGE_BYTES_MAX,
    ],
)
def test_a_malformed_first_message_is_refused(first: bytes) -> None:
    assert FILE.begin_exchange("SCRAM-SHA-256", "nonce").step(first) == BAD_CREDENTIALS


@given(st.lists(st.binary(max_size=60) | st.text("n,=rcpabiws", max_size=40).map(str.encode), min_size=2, max_size=3))
def test_no_bytes_raise_or_get_in(messages: list[bytes]) -> None:
    exchange = FILE.begin_exchange("SCRAM-SHA-256", "nonce")
    assert not any(isinstance(exchange.step(message), Accepted) for message in messages)


@given(st.text("c=biws,rp+/AB", max_size=60))
def test_no_bytes_after_a_good_start_raise_or_get_in(final: str) -> None:
    exchange = FILE.begin_exchange("SCRAM-SHA-256", "nonce")
    assert isinstance(exchange.step(b"n,,n=ann,r=abc"), Challenge)
    assert exchange.step(final.encode()) == BAD_CREDENTIALS
    assert exchange.step(f"c=biws,r=abcnonce,p={base64.b64encode(final.encode()).decode()}".encode()) == BAD_CREDENTIALS
