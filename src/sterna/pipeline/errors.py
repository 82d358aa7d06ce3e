"""Errors between a network and Spark.  Every text is one line that names the actor, the fault and the remedy.

PipelineError
├── DataLoss           a node no longer has what a query still needs
├── NodesMissing       no feed answers, or the address of a node is unknown
├── BadRow             a row is not a message
└── PublishFailed      a node did not accept a message
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
