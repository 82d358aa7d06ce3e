"""Errors of an expression, and of the saved state of an engine."""

from __future__ import annotations

from sterna.vocabulary.errors import SternaError


class ExpressionError(SternaError):
    """The subscriber's: `operator` at byte `position` cannot be; `text` says what to write instead."""

    def __init__(self, position: int, operator: str, text: str) -> None:
        super().__init__(f"{operator} (byte {position}): {text}")
        self.position = position
        self.operator = operator
        self.text = text


class StateError(SternaError):
    """A snapshot or a partial result that is damaged, or belongs to another expression."""
