"""The four messages that turn a connection into an authenticated one, and the proofs in them.

    dialler                                   acceptor
    HELLO: terms with a nonce            ->
                                         <-   CHALLENGE: terms with a nonce, proof
    PROOF: what it holds, proof          ->
                                         <-   WELCOME: the session, proof
    REFUSAL, with a reason, may come from either side instead.

A proof is an HMAC under the network's key over every byte said before it and a word for the direction.  So it shows
that its maker has the key, answers this very nonce and read the same terms; it cannot be reflected or used again.

Terms begin with the oldest version of the link protocol that their maker speaks, and name the newest.  The link is of
the newest version that both speak.
"""

from __future__ import annotations

import hmac
from struct import Struct as Layout
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta, Struct

from sterna.vocabulary import versions
from sterna.vocabulary.errors import SternaError
from sterna.vocabulary.versions import Versions

HELLO, CHALLENGE, PROOF, WELCOME, REFUSAL = 1, 2, 3, 4, 5
UNAUTHENTICATED_BYTES_MAX = 4096
MESSAGE_BYTES_MAX = 1024
REASON_CHARACTERS_MAX = 300
NONCE_BYTES = 32

_HEAD = Layout(">HB")
HEAD_BYTES = _HEAD.size
_GREETING = Layout(">6sH")
_MAGIC = b"sterna"
_PROOF_BYTES = 32
_DIALLER, _ACCEPTOR = b"the dialler proves", b"the acceptor proves"
_FROM_DIALLER, _FROM_ACCEPTOR = b"batches of the dialler", b"batches of the acceptor"

Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.-]{1,64}\Z")]
Number = Annotated[int, Meta(ge=0)]


class HandshakeError(SternaError):
    """The handshake cannot go on.  `answer` says whether the peer is told why: not if it speaks another language.
    `told` is what it is told, if that is less."""

    def __init__(self, reason: str, *, answer: bool = True, told: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.answer = answer
        self.told = told or reason


class Terms(Struct, frozen=True, array_like=True):
    """The identity of one side, and what it insists on."""

    network: Name
    node: Name
    strategy: Name
    epoch: Number
    incarnation: Annotated[bytes, Meta(min_length=8, max_length=8)]
    """Drawn once per process: tells a process from its namesakes even where epochs are alike."""
    nonce: Annotated[bytes, Meta(min_length=NONCE_BYTES, max_length=NONCE_BYTES)]
    frame_bytes: Number
    """Largest frame it takes."""
    newest: Number = 0
    """The newest version of the link protocol it speaks; less than the oldest: that one only."""


class HandshakeClaim(Struct, frozen=True, array_like=True):
    """The session as one side knows it."""

    session: Number
    """0 for none."""
    received: Number
    """Number of the last batch it has of the other side."""
    attachments: Number
    """How many connections it had given to links when it said this: tells a late word from a new one."""


_Message = TypeVar("_Message", Terms, HandshakeClaim)


class LinkHandshake:
    """One side of one handshake: remembers every byte, makes and checks proofs."""

    __slots__ = ("_key", "_makes", "_said", "_speaks", "_wants", "is_dialler", "version")

    def __init__(self, key: bytes, *, is_dialler: bool, speaks: Versions = versions.LINK) -> None:
        self._key = key
        self._said = b""
        self._speaks = speaks
        self.is_dialler = is_dialler
        #: Of the link, once the other side's terms are known.
        self.version = speaks.oldest
        self._makes, self._wants = (_DIALLER, _ACCEPTOR) if is_dialler else (_ACCEPTOR, _DIALLER)

    def say(self, kind: int, message: Terms | HandshakeClaim) -> bytes:
        """The bytes to send."""
        body = msgspec.msgpack.encode(message)
        if kind in (HELLO, CHALLENGE):
            body = _GREETING.pack(_MAGIC, self._speaks.oldest) + body
        if kind != HELLO:
            body += self._proof(self._makes, kind, body)
        self._said += framed(kind, body)
        return framed(kind, body)

    def hear_terms(self, kind: int, body: bytes) -> Terms:
        """The terms in a HELLO or CHALLENGE.  A challenge's proof is checked by `check`, after the terms were."""
        if len(body) < _GREETING.size:
            raise HandshakeError("no link of ours", answer=False)
        magic, oldest = _GREETING.unpack_from(body)
        if magic != _MAGIC:
            raise HandshakeError("no link of ours", answer=False)
        end = len(body) if kind == HELLO else len(body) - _PROOF_BYTES
        try:
            terms = _decoded(body[_GREETING.size : max(end, 0)], Terms)
        except HandshakeError:
            if oldest in self._speaks:
                raise
            raise HandshakeError(_no_common_version(Versions(oldest, oldest), self._speaks)) from None
        theirs = Versions(oldest, max(oldest, terms.newest))
        version = self._speaks.common(theirs)
        if version is None:
            raise HandshakeError(_no_common_version(theirs, self._speaks))
        self.version = version
        return terms

    def hear_claim(self, kind: int, body: bytes) -> HandshakeClaim:
        """The claim in a PROOF or WELCOME; its proof has to hold."""
        self.check(kind, body)
        return _decoded(body[:-_PROOF_BYTES], HandshakeClaim)

    def check(self, kind: int, body: bytes) -> None:
        if kind != HELLO:
            expected = self._proof(self._wants, kind, body[:-_PROOF_BYTES])
            if not hmac.compare_digest(expected, body[-_PROOF_BYTES:]):
                raise HandshakeError("the nodes do not have the same network key")
        self._said += framed(kind, body)

    def keys(self) -> tuple[bytes, bytes]:
        """For the batches we send and those we receive, once the WELCOME was said or heard."""
        dialler, acceptor = (
            hmac.digest(self._key, word + self._said, "sha256") for word in (_FROM_DIALLER, _FROM_ACCEPTOR)
        )
        return (dialler, acceptor) if self.is_dialler else (acceptor, dialler)

    def _proof(self, word: bytes, kind: int, body: bytes) -> bytes:
        return hmac.digest(self._key, word + self._said + framed(kind, body), "sha256")


def _no_common_version(theirs: Versions, ours: Versions) -> str:
    text = f"one node speaks version {theirs} of the link protocol, the other version {ours}"
    return f"{text}; run releases that follow each other on both"


def framed(kind: int, body: bytes) -> bytes:
    return _HEAD.pack(len(body), kind) + body


def first_message(data: bytes) -> tuple[int, bytes] | None:
    """Kind and body of the message the bytes begin with, None if it is not whole yet."""
    if len(data) < HEAD_BYTES:
        return None
    length, kind = _HEAD.unpack_from(data)
    if length > MESSAGE_BYTES_MAX:
        raise HandshakeError("no link of ours", answer=False)
    body = data[HEAD_BYTES : HEAD_BYTES + length]
    return (kind, body) if len(body) == length else None


def refusal(reason: str, *, is_redundant: bool) -> bytes:
    """Understood by every version: a truth value and UTF-8 text."""
    return framed(REFUSAL, bytes([is_redundant]) + reason[:REASON_CHARACTERS_MAX].encode())


def read_refusal(body: bytes) -> tuple[str, bool]:
    return legible(body[1:]), body[:1] == b"\1"


def legible(text: bytes) -> str:
    """Text of a peer, fit for a log or a terminal."""
    shown = text.decode("utf-8", "replace")[:REASON_CHARACTERS_MAX]
    return "".join(character if character.isprintable() else "?" for character in shown)


def _decoded(body: bytes, kind: type[_Message]) -> _Message:
    try:
        return msgspec.msgpack.decode(body, type=kind)
    except (ValueError, RecursionError):  # msgspec's own errors are ValueErrors, and so is text that is not UTF-8
        raise HandshakeError("a malformed handshake", answer=False) from None
