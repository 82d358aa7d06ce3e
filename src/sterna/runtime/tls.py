"""TLS contexts, and how they are replaced while sockets are open."""

from __future__ import annotations

import hashlib
import ssl
from pathlib import Path


def server_context(certificate: str, key: str | None, client_ca: str | None, *, required: bool) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # An encrypted key would ask for its password on the terminal; an empty one makes it fail instead.
    context.load_cert_chain(certificate, key, password=lambda: "")
    if client_ca is not None:
        context.load_verify_locations(client_ca)
        context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
    return context


class RenewableContext:
    """For servers that take one context for as long as they listen: each handshake goes on with the `current` one."""

    def __init__(self, context: ssl.SSLContext, digest: str, expires_at: float) -> None:
        """`digest` tells what it was made of from anything else; its certificate expires at that second."""
        self.current = context
        self.digest = digest
        self.expires_at = expires_at
        self.outer = context
        # A ticket must not take up again a connection that an earlier context verified.
        context.num_tickets = 0
        context.options |= ssl.OP_NO_TICKET
        context.sni_callback = self._choose

    def renew(self, context: ssl.SSLContext, digest: str, expires_at: float) -> bool:
        """From here on handshakes use this one; whether that makes a difference."""
        is_other = digest != self.digest
        self.current, self.digest, self.expires_at = context, digest, expires_at
        return is_other

    def _choose(self, connection: ssl.SSLObject, _name: str, _context: ssl.SSLContext) -> None:
        """Called in every handshake, with a server name or without."""
        if self.current is not self.outer:
            connection.context = self.current


def expires_at(certificate: Path) -> float:
    """Second of the wall clock at which the first certificate of a PEM file expires.  May raise OSError."""
    from cryptography import x509  # takes a moment, and a node without TLS does without

    try:
        return x509.load_pem_x509_certificate(certificate.read_bytes()).not_valid_after_utc.timestamp()
    except ValueError as error:
        raise ssl.SSLError(f"{certificate} holds no certificate: {error}") from None


def digest_of(*files: Path | None) -> str:
    """Tells their contents from others; empty if there are none.  May raise OSError."""
    contents = [file.read_bytes() for file in files if file is not None]
    return hashlib.blake2b(b"\0".join(contents), digest_size=16).hexdigest() if contents else ""
