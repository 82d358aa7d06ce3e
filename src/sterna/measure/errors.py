"""The error that stops a measurement.  Every message names the broker, process or file and what was seen."""

from __future__ import annotations

from sterna.vocabulary.errors import SternaError


class MeasurementError(SternaError):
    """A process did not start, broke the protocol or did not finish in time, or a measurement is not complete."""
