"""What stops an experiment.  Every message says which part of it failed and what was seen."""

from __future__ import annotations

from sterna.vocabulary.errors import SternaError


class ExperimentError(SternaError):
    """A process did not start, a measurement is not complete, or something did not happen in time."""
