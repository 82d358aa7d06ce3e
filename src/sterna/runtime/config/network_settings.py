"""From the `[network]` table to what the links go by: the key read, every setting handed on.

May raise ConfigurationError (the key is of no use) or OSError (its file is not).
"""

from __future__ import annotations

from sterna.overlay.link_settings import LinkSettings
from sterna.runtime.config.settings import Network
from sterna.vocabulary.errors import ConfigurationError

NETWORK_KEY_BYTES_MIN = 16


def network_key(settings: Network) -> bytes:
    """The secret the nodes share; empty where none is asked for, which is on loopback only."""
    if settings.key_file is not None:
        key = settings.key_file.read_bytes().rstrip(b"\r\n")
    elif settings.key is not None:
        key = settings.key.encode()
    else:
        return b""
    if len(key) < NETWORK_KEY_BYTES_MIN:
        text = f"the network key has {len(key)} bytes, and who records a handshake could guess it"
        raise ConfigurationError(f"{text}; use {NETWORK_KEY_BYTES_MIN} or more (head -c 32 /dev/urandom | base64)")
    return key


def link_settings(network: Network, node: str, epoch: int) -> LinkSettings:
    """What the links of this node go by."""
    return LinkSettings(
        network=network.name,
        node=node,
        epoch=epoch,
        strategy=network.strategy,
        key=network_key(network),
        keep_alive_s=network.keep_alive_s,
        dead_after_s=network.dead_after_s,
        resume_s=network.resume_s,
        handshake_s=network.handshake_s,
        resend_bytes=network.resend_bytes,
        batch_bytes=network.batch_bytes,
        ack_bytes=network.ack_bytes,
        frame_bytes=network.frame_bytes,
        pending_handshakes=network.pending_handshakes,
        compress=network.compress,
        certified=network.tls is not None and network.tls.check_nodes,
    )
