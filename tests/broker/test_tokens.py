"""Tokens: only the configured algorithm with its own key, only in their time, only with a usable name."""

from __future__ import annotations

import base64
import hmac
import json
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from hypothesis import given
from hypothesis import strategies as st

from sterna.broker.access.tokens import TOKEN_BYTES_MAX, TokenVerifier, VerifiedToken
from sterna.vocabulary.errors import ConfigurationError

SECRET = b"0123456789abcdef0123456789abcdef"
NOW = 1_000_000.0
CLAIMS: dict[str, Any] = {"sub": "ann", "exp": NOW + 60}

Private = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey


def private_pem(key: Private) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def public_pem(key: Private) -> bytes:
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


RSA_KEY = rsa.generate_private_key(65537, 2048)
EC_KEY = ec.generate_private_key(ec.SECP256R1())


def token(algorithm: str = "HS256", key: bytes = SECRET, **claims: Any) -> bytes:
    merged = {name: value for name, value in {**CLAIMS, **claims}.items() if value is not None}
    return jwt.encode(merged, key, algorithm).encode()


def forged(header: object, key: bytes = b"") -> bytes:
    """All that an attacker can put together: any header, signed with any bytes as if they were a shared secret."""
    parts = (json.dumps(header).encode(), json.dumps(CLAIMS).encode())
    signed = b".".join(base64.urlsafe_b64encode(part).rstrip(b"=") for part in parts)
    signature = hmac.digest(key, signed, "sha256") if key else b""
    return signed + b"." + base64.urlsafe_b64encode(signature).rstrip(b"=")


HS256 = TokenVerifier({"HS256": SECRET}, leeway_s=0)


@pytest.mark.parametrize(
    ("algorithm", "signing", "verifying"),
    [
        ("HS256", SECRET, SECRET),
        ("RS256", private_pem(RSA_KEY), public_pem(RSA_KEY)),
        ("ES256", private_pem(EC_KEY), public_pem(EC_KEY)),
    ],
)
def test_a_signed_token_names_its_user_and_its_end(algorithm: str, signing: bytes, verifying: bytes) -> None:
    verifier = TokenVerifier({algorithm: verifying}, leeway_s=5)
    signed = token(algorithm, signing)
    assert verifier.recognises(signed)
    assert verifier.verify(signed, now=NOW) == VerifiedToken("ann", NOW + 65)
    assert verifier.verify(signed[:-8] + b"AAAAAAAA", now=NOW) is None


def test_time_is_the_callers_and_leeway_widens_it_on_both_sides() -> None:
    signed = token(nbf=NOW)
    loose = TokenVerifier({"HS256": SECRET}, leeway_s=5)
    assert [HS256.verify(signed, now=NOW + t) is not None for t in (-1, 0, 59.9, 60)] == [False, True, True, False]
    assert [loose.verify(signed, now=NOW + t) is not None for t in (-6, -5, 64, 65)] == [False, True, True, False]


def test_audience_and_issuer_must_fit_where_they_are_configured() -> None:
    strict = TokenVerifier({"HS256": SECRET}, audience="node", issuer="us")
    assert strict.verify(token(aud="node", iss="us"), now=NOW)
    assert strict.verify(token(aud=["node", "x"], iss="us"), now=NOW)
    for audience, issuer in (("x", "us"), ("node", "x"), ("node", None), (None, "us")):
        assert strict.verify(token(aud=audience, iss=issuer), now=NOW) is None


def test_a_token_for_another_audience_is_refused_where_none_is_configured() -> None:
    assert HS256.verify(token(aud="somebody else"), now=NOW) is None


def test_a_token_cannot_choose_how_it_is_verified() -> None:
    both = TokenVerifier({"RS256": public_pem(RSA_KEY), "HS256": SECRET})
    assert both.verify(token("RS256", private_pem(RSA_KEY)), now=NOW)
    for algorithm in ("none", "None", "", None, 7, ["HS256"], "HS384", "ES256"):
        assert both.verify(forged({"alg": algorithm}), now=NOW) is None
        assert both.verify(forged({"alg": algorithm}, SECRET), now=NOW) is None
    assert both.verify(forged({"alg": "HS256"}, SECRET), now=NOW)
    # The old trick: the public key, which everybody knows, as the shared secret.
    confused = forged({"alg": "HS256"}, public_pem(RSA_KEY))
    assert both.verify(confused, now=NOW) is None
    assert TokenVerifier({"RS256": public_pem(RSA_KEY)}).verify(confused, now=NOW) is None


@pytest.mark.parametrize(
    "claims",
    [
        {"sub": None},
        {"exp": None},
        {"exp": "1000060"},
        {"exp": True},
        {"exp": float("inf")},
        {"exp": float("nan")},
        {"exp": 10**400},
        {"nbf": "0"},
        {"nbf": True},
        {"nbf": float("nan")},
        {"sub": ""},
        {"sub": "*"},
        {"sub": "anonymous"},
        {"sub": "ann\n"},
        {"sub": "\ud800"},
        {"exp": [], "nbf": {}},
    ],
)
def test_a_signed_token_with_unusable_claims_is_refused(claims: dict[str, Any]) -> None:
    assert HS256.verify(token(**claims), now=NOW) is None


def test_a_subject_that_is_not_text_is_refused() -> None:
    signed = jwt.PyJWS().encode(json.dumps({**CLAIMS, "sub": 7}).encode(), SECRET, "HS256").encode()
    assert HS256.verify(signed, now=NOW) is None


def test_an_oversized_token_is_not_even_read() -> None:
    assert HS256.verify(token(padding="x" * TOKEN_BYTES_MAX), now=NOW) is None


def test_an_ordinary_password_is_not_taken_for_a_token() -> None:
    assert not any(
        HS256.recognises(password) for password in (b"", b"pencil", b"a.b.c", b"eyJ", b"eyJ.x", b"eyJ.x.y.z")
    )


@given(st.binary(max_size=80) | st.text("eyJ.AQab0_-=", max_size=60).map(str.encode))
def test_no_bytes_raise_or_verify(password: bytes) -> None:
    assert HS256.verify(password, now=NOW) is None


@pytest.mark.parametrize(
    ("keys", "complaint"),
    [
        ({}, "at least one"),
        ({"none": b""}, "'none'"),
        ({"HS512": SECRET * 2}, "'HS512'"),
        ({"HS256": b"short"}, "too short"),
        ({"HS256": b""}, "cannot be used"),
        ({"HS256": public_pem(RSA_KEY)}, "not a PEM key"),
        ({"RS256": SECRET}, "public key in PEM"),
        ({"RS256": public_pem(EC_KEY)}, "public key in PEM"),
        ({"ES256": SECRET}, "public key in PEM"),
        ({"ES256": public_pem(RSA_KEY)}, "public key in PEM"),
        ({"ES256": public_pem(ec.generate_private_key(ec.SECP384R1()))}, "public key in PEM"),
        ({"RS256": public_pem(rsa.generate_private_key(65537, 1024))}, "too short"),
    ],
)
def test_a_key_that_cannot_protect_is_refused_at_once(keys: dict[str, bytes], complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        TokenVerifier(keys)
