"""What stops a benchmark.  Every message names the broker or the file and what was seen."""

from __future__ import annotations

from sterna.vocabulary.errors import SternaError


class BenchmarkError(SternaError):
    """A broker could not be started, broke the protocol, lost the connection or did not finish in time."""
