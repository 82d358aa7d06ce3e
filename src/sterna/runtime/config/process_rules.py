"""Checks that nodes and gateways share: ranges of all numbers, listeners, and the admin port."""

from __future__ import annotations

import math
import re
from functools import partial
from typing import Any

from sterna.runtime.config.access import passwords
from sterna.runtime.config.files import attempt, check_authority, check_pair, contents
from sterna.runtime.config.problems import ProblemReport
from sterna.runtime.config.process_tables import Admin, ListenerTable
from sterna.runtime.config.schema import is_table, keys_of, table_in_list
from sterna.runtime.config.secrets import ADMIN_READ_TOKEN, ADMIN_TOKEN
from sterna.runtime.config.toml_source import Place
from sterna.vocabulary.settings import MANY, Allowed


def check_ranges(table: Any, place: Place, report: ProblemReport) -> None:
    """Report every number, in this table and those inside it, that is out of the range of its field."""
    for name, key in keys_of(type(table)).items():
        value, here = getattr(table, key.attribute), (*place, name)
        if is_table(type(value)):
            check_ranges(value, here, report)
        elif table_in_list(key.kind):
            for index, item in enumerate(value):
                check_ranges(item, (*here, index), report)
        elif isinstance(value, int | float):
            _check_number(value, key.range, here, report)


def _check_number(value: float, limits: Allowed, place: Place, report: ProblemReport) -> None:
    # `not <=` rather than `>`, so that nan is refused too.
    if not (limits.least <= value <= limits.most and math.isfinite(value)):
        bounds = f"{limits.least} or more" if limits.most == MANY else f"{limits.least}..{limits.most}"
        report.add(place, f"{value} is out of range", f"use {bounds}")


def check_admin(admin: Admin, report: ProblemReport) -> None:
    for host in admin.hosts:
        if host != "*" and not re.fullmatch(r"[\w.-]+", host, re.ASCII):
            report.add(
                ("admin", "hosts"), f'"{host}" is no host name', 'write "broker.example", without a port, or "*"'
            )
    has_token = ADMIN_TOKEN.check(admin, report)
    has_read_token = ADMIN_READ_TOKEN.check(admin, report)
    has_people = admin.password_file is not None
    if admin.password_file is not None:
        attempt(partial(passwords, admin.password_file), ("admin", "password_file"), report)
    elif admin.operators:
        report.add(("admin", "operators"), "there are no users", "set password_file, or leave operators out")
    if admin.bind and not (admin.anonymous or has_token or has_people or has_read_token):
        if admin.bind.is_local:
            fix = "set token_file, read_token_file or password_file in [admin], or leave anonymous out"
            report.add(("admin", "anonymous"), "nobody may read here or change anything", fix)
        else:
            fix = "use 127.0.0.1, set token_file in [admin], or say anonymous = true there if that is meant"
            report.add(("admin", "bind"), f"{admin.bind} shows metrics to everybody who can reach it", fix)


def check_origins(listener: ListenerTable, place: Place, report: ProblemReport) -> None:
    if listener.allowed_origins and listener.transport != "websocket":
        report.add(place, "only browsers have an origin, and they come by WebSocket", 'set transport = "websocket"')
    for origin in listener.allowed_origins:
        if origin not in ("*", "null") and not re.fullmatch(r"[a-zA-Z][\w+.-]*://[^/\s]+", origin, re.ASCII):
            report.add(place, f'"{origin}" is no origin', 'write "https://plant.example", without a path, or "*"')


def check_tls(listener: ListenerTable, place: Place, report: ProblemReport) -> None:
    if listener.key and not listener.certificate:
        report.add((*place, "key"), "a key without a certificate", "add certificate")
    if listener.client_ca and not listener.certificate:
        report.add((*place, "client_ca"), "client certificates need TLS", "add certificate and key")
    if listener.require_certificate and not listener.client_ca:
        report.add((*place, "require_certificate"), "no authority to check certificates by", "add client_ca")
    if listener.certificate and not listener.key:
        report.add((*place, "certificate"), "a certificate without its key", "add key")
    named = {key: file for key in ("certificate", "key", "client_ca") if (file := getattr(listener, key))}
    readable = {key for key, file in named.items() if contents(file, (*place, key), report) is not None}
    if listener.certificate and listener.key and {"certificate", "key"} <= readable:
        check_pair(listener.certificate, listener.key, place, report)
    if listener.client_ca and "client_ca" in readable:
        check_authority(listener.client_ca, (*place, "client_ca"), report)
