"""How a reader and a node each prove to the other that they know the feed's token, without saying it.

A listener learns neither the token nor a proof that could be used again, as each side brings random bytes of its own.
A reader takes nonces of the one length only, so that no node can have it make a proof that is a node's.
"""

from __future__ import annotations

import hashlib
import hmac

NONCE_BYTES = 32


def reader_proof(token: bytes, node_nonce: bytes, reader: str) -> bytes:
    return hmac.digest(token, node_nonce + reader.encode("utf-8", "surrogatepass"), hashlib.sha256)


def node_proof(token: bytes, node_nonce: bytes, reader_nonce: bytes, node: str) -> bytes:
    return hmac.digest(token, b"node" + node_nonce + reader_nonce + node.encode(), hashlib.sha256)
