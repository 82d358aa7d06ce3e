"""Reads payloads: a number, a text, or one field of a JSON or CBOR document.

For any bytes the outcome is a value or None; never an exception, never NaN or an infinity.  All engines share this
module, so that no two of them read a payload differently.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from sterna.operators.exact_sum import NUMBER_MAX

#: Longest text that is taken for a number; the longest that Python writes for a double has 24 characters.
NUMBER_BYTES_MAX: Final = 64

_json = msgspec.json.Decoder()


class _Last:
    """The last payloads taken apart and read as text: hundreds of expressions may ask the same of one message, and to
    take 64 KiB apart may take tens of milliseconds."""

    def __init__(self) -> None:
        self.payload = b""
        self.found: object = None
        self.written = b""
        self.text: str | None = ""


_last = _Last()


def number_of(payload: bytes) -> float | None:
    """`21.5`, ` -3e2\\n`; not `nan`, `inf`, `1_000`, or 2^127 and more."""
    if len(payload) > NUMBER_BYTES_MAX or b"_" in payload:
        return None
    try:
        value = float(payload)
    except ValueError:
        return None
    # False for NaN too.  Adding 0.0 makes 0.0 of -0.0: of equal values none may look different.
    return value + 0.0 if -NUMBER_MAX < value < NUMBER_MAX else None


def text_of(payload: bytes) -> str | None:
    if payload is not _last.written:
        try:
            _last.text = payload.decode()
        except UnicodeDecodeError:
            _last.text = None
        _last.written = payload
    return _last.text


def field_of(payload: bytes, path: tuple[str, ...], bytes_max: int) -> object:
    """The value at `path` in a JSON or CBOR payload; None if nothing does."""
    if not payload or len(payload) > bytes_max:
        return None
    if payload is not _last.payload:
        # A CBOR array, map or tag begins with 0x80 or more, and JSON never does.
        _last.found = _from_cbor(payload) if payload[0] >= 0x80 else _from_json(payload)
        _last.payload = payload
    found = _last.found
    for segment in path:
        if isinstance(found, Mapping):  # within tags CBOR's are frozen ones
            found = found.get(segment)
        elif (
            isinstance(found, list | tuple) and segment.isdecimal() and len(segment) < 10 and int(segment) < len(found)
        ):
            found = found[int(segment)]
        else:
            return None
    return found


def number_in(found: object) -> float | None:
    """A field's number: one of JSON's or CBOR's, or a text that says one.  True and false are none."""
    if isinstance(found, bool):
        return None
    if isinstance(found, int | float):
        return float(found) + 0.0 if -NUMBER_MAX < found < NUMBER_MAX else None
    if isinstance(found, str):
        return number_of(found.encode("utf-8", "replace"))
    return None


def text_in(found: object) -> str | None:
    """A field's text; a number or truth value is taken as JSON writes it.  Objects and arrays are none."""
    if isinstance(found, str):
        return found
    if isinstance(found, bool | float) or (isinstance(found, int) and -(2**63) <= found < 2**64):
        return msgspec.json.encode(found).decode()
    return None


def _from_json(payload: bytes) -> object:
    try:
        return _json.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _from_cbor(payload: bytes) -> object:
    from cbor2 import loads  # only who uses it pays for it

    try:
        # Keys that are texts have a hash nobody can foresee; chosen integers took half a second per 64 KiB.
        return loads(payload, semantic_decoders=_UNREAD_TAGS, strict_hashable_types=True)
    except Exception:  # other tags build dates, fractions, addresses, and these raise what they like
        return None


def _as_it_is(value: object, immutable: bool) -> object:
    return value


#: Regular expressions and mail messages are left as text: to compile one of 64 KiB took half a second.
_UNREAD_TAGS = {35: _as_it_is, 36: _as_it_is}
