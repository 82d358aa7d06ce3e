"""The error tree of the project: each class says whose fault it was.

SternaError
├── ConfigurationError      the operator's: the message says file, place and fix
├── ProtocolError           the client's: carries the MQTT reason code that closes its connection
├── LinkProtocolError       a neighbour's: its link session is given up and begun afresh
├── MigrationError          the order to move a client: the message says why it cannot be done
├── JournalError            the disk's: the message says which file and what was done about it
│   └── JournalCorrupt      bytes that a checksum refuses; never guessed at
└── (our own bugs are assertions, not errors)
"""

from __future__ import annotations


class SternaError(Exception):
    """Everything Sterna raises on purpose."""


class ConfigurationError(SternaError):
    """The configuration cannot be used; the text tells the operator what to change."""


class ProtocolError(SternaError):
    """The peer broke the protocol.  `code` is the MQTT 5 reason code for the closing packet."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


class LinkProtocolError(SternaError):
    """A neighbour said what makes no sense; the text says what."""


class MigrationError(SternaError):
    """A client cannot be moved as somebody asked; the text says why."""


class JournalError(SternaError):
    """The journal could not be written or read."""


class JournalCorrupt(JournalError):
    """A frame whose checksum does not hold."""
