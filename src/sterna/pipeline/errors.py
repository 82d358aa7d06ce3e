"""What can go wrong between a network and Spark; every text is one line that says who, what and what to do.

PipelineError
├── DataLoss           a node no longer has what a query still needs
├── NodesMissing       no feed answers, or nobody knows the address of a node
├── BadRow             a row that is no message
└── PublishFailed      a node did not take what was to be published
"""

from __future__ import annotations

from sterna.vocabulary.errors import SternaError


class PipelineError(SternaError):
    """A job on the network's table cannot go on."""


class DataLoss(PipelineError):
    """Messages that a query had not read are gone."""


class NodesMissing(PipelineError):
    """Nobody to read from."""


class BadRow(PipelineError):
    """A row that cannot be published; the text names the row and how many before it have been."""


class PublishFailed(PipelineError):
    """A node refused messages, or did not answer in time."""
