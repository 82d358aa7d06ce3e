"""Everything an operator can set about a coordinator, and the checks of it."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec.structs import replace

from sterna.adaptation.coordinating import CoordinatingTuning
from sterna.adaptation.scaling import thresholds
from sterna.adaptation.settings import AdaptationTuning, problems
from sterna.runtime.adaptation.tables import SealedAdaptationTable, check_adaptation, check_key, check_name
from sterna.runtime.adaptation.worker_settings import Coordinates
from sterna.runtime.config.problems import ProblemReport
from sterna.runtime.config.process_rules import check_admin, check_ranges
from sterna.runtime.config.process_tables import Admin, Log
from sterna.runtime.config.reader import load_as
from sterna.runtime.config.schema import Bind, Table
from sterna.vocabulary.settings import ShownDefault


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorTable(CoordinatingTuning):
    """A coordinator among those of its region."""

    name: Annotated[str, ShownDefault("host name")] = field(default_factory=socket.gethostname)
    """Name of this coordinator, unique in its network."""


class CoordinatorAdmin(Admin, frozen=True):
    bind: Bind | None = Bind("127.0.0.1", 9887)


class CoordinatorConfiguration(Table, frozen=True):
    """The whole file, every default filled in and every path absolute."""

    coordinator: CoordinatorTable = msgspec.field(default_factory=CoordinatorTable)
    decisions: AdaptationTuning = msgspec.field(default_factory=AdaptationTuning)
    adaptation: SealedAdaptationTable = msgspec.field(default_factory=SealedAdaptationTable)
    coordinates: Coordinates = msgspec.field(default_factory=Coordinates)
    admin: CoordinatorAdmin = msgspec.field(default_factory=CoordinatorAdmin)
    log: Log = msgspec.field(default_factory=Log)


def load_coordinator(path: Path | None, environ: Mapping[str, str]) -> CoordinatorConfiguration:
    """Read, check and complete the configuration; raise InvalidConfiguration with everything that is wrong."""
    return load_as(CoordinatorConfiguration, _apply_rules, path, environ)


def _apply_rules(
    configuration: CoordinatorConfiguration, tree: dict[str, Any], report: ProblemReport
) -> CoordinatorConfiguration:
    words, admin = tree.get("admin"), configuration.admin
    if admin.bind and not (isinstance(words, dict) and "anonymous" in words):
        admin = replace(admin, anonymous=admin.bind.is_local)
    completed = replace(configuration, admin=admin)
    check_ranges(completed, (), report)
    check_name(completed.coordinator.name, ("coordinator", "name"), report)
    check_adaptation(completed.adaptation, report)
    check_key(completed.adaptation, report)
    check_admin(completed.admin, report)
    if report.is_sound("decisions"):
        used = thresholds(completed.decisions)
        for problem in problems(completed.decisions, used.up, used.down):
            report.add(("decisions",), problem, "")
    return completed
