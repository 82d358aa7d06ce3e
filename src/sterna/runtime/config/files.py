"""Checks of the files a configuration names: each can be read, and holds what its key asks for."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path

from sterna.runtime.config.problems import ProblemReport
from sterna.runtime.config.toml_source import Place
from sterna.vocabulary.errors import ConfigurationError


def attempt(build: Callable[[], object], place: Place, report: ProblemReport) -> None:
    """Build it as the node will, and report what stops it."""
    try:
        build()
    except ConfigurationError as error:
        report.add(place, str(error), "")
    except OSError as error:
        report.add(place, f"{error.filename} cannot be read: {error.strerror}", "name a readable file")


def contents(file: Path, place: Place, report: ProblemReport) -> bytes | None:
    try:
        return file.read_bytes()
    except OSError as error:
        report.add(place, f"{file} cannot be read: {error.strerror}", "name a readable file")
        return None


def check_pair(certificate: Path, key: Path, place: Place, report: ProblemReport) -> None:
    try:
        # An encrypted key would ask for its password on the terminal; an empty one makes it fail instead.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password=lambda: "")
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            report.add((*place, "key"), f"{key} is not the key of {certificate}", "name the key that belongs to it")
        else:
            text = f"{certificate} and {key} cannot be loaded"
            report.add((*place, "certificate"), text, "use a PEM certificate chain and an unencrypted PEM key")


def check_authority(file: Path, place: Place, report: ProblemReport) -> None:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(file)
    except ssl.SSLError:
        report.add(place, f"{file} holds no certificate", "name a PEM file")
