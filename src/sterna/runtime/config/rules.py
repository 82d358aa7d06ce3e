"""What must hold between settings: ranges, addresses, files that can be read, and safety by default.

Nothing listens beyond this machine without authentication, unless the operator says so in as many words.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from functools import partial
from typing import Any

from msgspec.structs import replace

from sterna.broker.access.authorization import check_client_pattern
from sterna.operators.functions import Functions
from sterna.runtime.config import access
from sterna.runtime.config.feed_rules import FEED_RANGES, check_feed, check_filter
from sterna.runtime.config.files import attempt, check_authority, check_pair, contents
from sterna.runtime.config.network_rules import MIGRATION_RANGES, NETWORK_RANGES, ROUTING_RANGES, check_network
from sterna.runtime.config.problems import Report
from sterna.runtime.config.settings import Admin, Bind, Configuration, FunctionTable, Listener, Token, as_plain
from sterna.runtime.config.toml_source import Place

_ANY = (0, 2**63 - 1)
FUNCTION_MEMORY_MIN = 256 * 1024 * 1024
_RANGES: dict[Place, tuple[float, float]] = {
    ("limits", "packet_bytes"): (128, 268_435_460),  # MQTT's largest: 4 bytes of length count to 268,435,455
    ("limits", "connect_bytes"): (128, 268_435_460),
    ("limits", "unauthenticated_bytes"): (65536, _ANY[1]),
    ("limits", "connections"): (1, _ANY[1]),
    ("limits", "connections_per_address"): (1, _ANY[1]),
    ("limits", "sessions"): (1, _ANY[1]),
    ("limits", "session_expiry_s"): (0, 2**32 - 1),
    ("limits", "topic_levels"): (1, 512),  # one stack frame each
    ("limits", "topic_bytes"): (1, 65535),
    ("limits", "inflight"): (1, 65535),
    ("limits", "inflight_bytes"): (1, _ANY[1]),
    ("limits", "receive_maximum"): (1, 65535),
    ("limits", "output_bytes"): (1024, _ANY[1]),
    ("limits", "topic_aliases"): (0, 65535),
    ("operators", "expiry_s"): (0.001, _ANY[1]),
    ("operators", "daily_s"): (0.001, _ANY[1]),
    ("operators", "hourly_s"): (0.001, _ANY[1]),
    ("operators", "quarter_hourly_s"): (0.001, _ANY[1]),
    ("operators", "spark_period_s"): (0.001, _ANY[1]),
    ("operators", "topics"): (1, _ANY[1]),
    ("operators", "window_values"): (1, _ANY[1]),
    ("operators", "buckets"): (1, _ANY[1]),
    ("functions", "workers"): (1, 256),
    ("functions", "time_out_s"): (0.01, 3600),
    ("operators", "pace_ms"): (0, 3_600_000),
    ("operators", "grace_s"): (0.0, 3600.0),
    ("limits", "connect_s"): (0.1, 3600),
    ("limits", "keep_alive_s"): (0, 65535),
    ("journal", "segment_bytes"): (64 * 1024, 2**40),
    ("journal", "group_commit_ms"): (0, 1000),
    ("mqtt", "sys_interval_s"): (0, 86400),
}
_RANGES |= {("network", key): bounds for key, bounds in NETWORK_RANGES.items()}
_RANGES |= {("network", "routing", key): bounds for key, bounds in ROUTING_RANGES.items()}
_RANGES |= {("migration", key): bounds for key, bounds in MIGRATION_RANGES.items()}
_RANGES |= {("feed", key): bounds for key, bounds in FEED_RANGES.items()}


def apply_rules(configuration: Configuration, tree: dict[str, Any], report: Report) -> Configuration:
    """Fill in the defaults that depend on other settings, then report every rule that is broken."""
    completed = _completed(configuration, tree)
    check_ranges(as_plain(completed), _RANGES, report)
    _check_name(completed, report)
    attempt(partial(access.networks, completed.mqtt.gateways), ("mqtt", "gateways"), report)
    _check_addresses(completed, report)
    _check_authentication(completed, report)
    _check_listeners(completed, report)
    _check_authorization(completed, report)
    check_admin(completed.admin, report)
    check_network(completed, report)
    check_feed(completed, report)
    for index, choice in enumerate(completed.operators.engines):
        check_filter(choice.filter, ("operators", "engines", index, "filter"), report)
    _check_functions(completed.functions, report)
    return completed


def _completed(configuration: Configuration, tree: dict[str, Any]) -> Configuration:
    """`anonymous` follows the bind and the default effect follows the rules, unless the operator spoke.

    Who asks for passwords or tokens means them: then no listener takes clients without, loopback or not.
    """
    checks_users = configuration.authentication.password_file or configuration.authentication.token
    said = [_table(item) for item in _list(tree.get("listener"))] or [{}]
    listeners = tuple(
        listener if "anonymous" in words else replace(listener, anonymous=listener.bind.is_local and not checks_users)
        for listener, words in zip(configuration.listeners, said, strict=False)
    )
    authorization, admin = configuration.authorization, configuration.admin
    if authorization.rules and "default" not in _table(tree.get("authorization")):
        authorization = replace(authorization, default="deny")
    if admin.bind and "anonymous" not in _table(tree.get("admin")):
        admin = replace(admin, anonymous=admin.bind.is_local)
    node = replace(configuration.node, data=configuration.node.data.absolute())
    return replace(configuration, node=node, listeners=listeners, authorization=authorization, admin=admin)


def _table(raw: Any) -> dict[str, Any]:
    return raw if isinstance(raw, dict) else {}


def _list(raw: Any) -> list[Any]:
    return raw if isinstance(raw, list) else []


def check_ranges(plain: dict[str, Any], ranges: dict[Place, tuple[float, float]], report: Report) -> None:
    for table, keys in plain.items():
        for key, value in keys.items() if isinstance(keys, dict) else ():
            low, high = ranges.get((table, key), _ANY)
            # `not <=` rather than `>`, so that nan is refused too.
            if isinstance(value, int | float) and not (low <= value <= high and math.isfinite(value)):
                bounds = f"{low} or more" if high == _ANY[1] else f"{low}..{high}"
                report.add((table, key), f"{value} is out of range", f"use {bounds}")


def _check_name(configuration: Configuration, report: Report) -> None:
    if not re.fullmatch(r"[\w.-]{1,64}", configuration.node.name, re.ASCII):
        report.add(("node", "name"), f'"{configuration.node.name}" is no name', "use up to 64 letters, digits, . _ -")


def _binds(configuration: Configuration) -> Iterator[tuple[Place, Bind]]:
    for index, listener in enumerate(configuration.listeners):
        yield ("listener", index, "bind"), listener.bind
    if configuration.admin.bind:
        yield ("admin", "bind"), configuration.admin.bind
    if configuration.network and configuration.network.bind:
        yield ("network", "bind"), configuration.network.bind
    if configuration.feed:
        yield ("feed", "bind"), configuration.feed.bind


def _check_addresses(configuration: Configuration, report: Report) -> None:
    if not configuration.listeners:
        report.add(("listener",), "there is none, so no client could connect", "add a [[listener]] table")
    taken: dict[Bind, Place] = {}
    for place, bind in _binds(configuration):
        is_fixed = bind.port != 0 or bind.path
        if is_fixed and taken.setdefault(bind, place) != place:
            line = report.line_of(taken[bind])
            report.add(place, f"{bind} is already taken" + (f" in line {line}" if line else ""), "use another port")


def _check_authentication(configuration: Configuration, report: Report) -> None:
    settings = configuration.authentication
    if settings.password_file:
        attempt(partial(access.passwords, settings.password_file), ("authentication", "password_file"), report)
    if settings.certificates and not any(listener.client_ca for listener in configuration.listeners):
        place = ("authentication", "certificates")
        report.add(place, "no listener asks for certificates", "set client_ca in a [[listener]]")
    if settings.token:
        _check_token(settings.token, report)


def _check_token(token: Token, report: Report) -> None:
    from sterna.broker.access.tokens import ALGORITHMS  # with the library behind it, which few nodes need

    place = ("authentication", "token")
    missing = [name for name in token.algorithms if name in ALGORITHMS and not access.key_file(token, name)]
    for name in missing:
        key = "secret_file" if name.startswith("HS") else "public_key_file"
        report.add((*place, key), f"is missing, and {name} needs it", "name the file")
    if not missing:
        attempt(partial(access.tokens, token), (*place, "algorithms"), report)


def _check_listeners(configuration: Configuration, report: Report) -> None:
    authentication = configuration.authentication
    checks_users = bool(authentication.password_file or authentication.token)
    for index, listener in enumerate(configuration.listeners):
        place: Place = ("listener", index)
        check_tls(listener, place, report)
        check_origins(listener, (*place, "allowed_origins"), report)
        # A client without a certificate gets through TLS where none is required; without a name it is refused then.
        shows_certificate = listener.require_certificate or authentication.certificates
        is_guarded = checks_users or (shows_certificate and listener.client_ca)
        if not is_guarded and not listener.anonymous and report.is_sound("authentication"):
            _refuse_unguarded(listener, (*place, "bind"), report)


def check_admin(admin: Admin, report: Report) -> None:
    if admin.token is not None and admin.token_file is not None:
        report.add(("admin", "token"), "there is a token and a token_file", "keep one of them")
    for host in admin.hosts:
        if host != "*" and not re.fullmatch(r"[\w.-]+", host, re.ASCII):
            report.add(
                ("admin", "hosts"), f'"{host}" is no host name', 'write "broker.example", without a port, or "*"'
            )
    has_token = admin.token is not None or admin.token_file is not None
    if has_token:
        place = ("admin", "token_file" if admin.token_file else "token")
        attempt(partial(access.admin_token, admin), place, report)
    elif admin.bind and not admin.bind.is_local and not admin.anonymous:
        fix = "use 127.0.0.1, set token_file in [admin], or say anonymous = true there if that is meant"
        report.add(("admin", "bind"), f"{admin.bind} shows metrics to everybody who can reach it", fix)


def _refuse_unguarded(listener: Listener, place: Place, report: Report) -> None:
    if listener.bind.is_local:
        text = f"nobody could connect to {listener.bind}: anonymous is false and nothing checks users"
    else:
        text = f"{listener.bind} can be reached from other machines and nothing checks who connects"
    fix = "set password_file in [authentication] (see `sterna passwd`), or say anonymous = true in this [[listener]]"
    report.add(place, text, fix)


def check_origins(listener: Listener, place: Place, report: Report) -> None:
    if listener.allowed_origins and listener.transport != "websocket":
        report.add(place, "only browsers have an origin, and they come by WebSocket", 'set transport = "websocket"')
    for origin in listener.allowed_origins:
        if origin not in ("*", "null") and not re.fullmatch(r"[a-zA-Z][\w+.-]*://[^/\s]+", origin, re.ASCII):
            report.add(place, f'"{origin}" is no origin', 'write "https://plant.example", without a path, or "*"')


def check_tls(listener: Listener, place: Place, report: Report) -> None:
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


def _check_functions(table: FunctionTable, report: Report) -> None:
    known = Functions()
    for index, own in enumerate(table.own):
        place = ("functions", "own", index)
        if not re.fullmatch(r"[^\W\d][\w.]*:[^\W\d][\w.]*", own.call):
            report.add((*place, "call"), f'"{own.call}" is no function', 'write "module:function"')
        try:
            known.register(own.name, None, own.returns)
        except ValueError as error:
            report.add((*place, "name"), str(error), "choose another name")
    if table.memory_bytes and table.memory_bytes < FUNCTION_MEMORY_MIN:
        fix = f"give at least {FUNCTION_MEMORY_MIN}, or 0 for any"
        report.add(("functions", "memory_bytes"), "too little for a process to start in", fix)


def _check_authorization(configuration: Configuration, report: Report) -> None:
    for pattern in configuration.authorization.client_ids:
        attempt(partial(check_client_pattern, pattern), ("authorization", "client_ids"), report)
    for index, rule in enumerate(configuration.authorization.rules):
        attempt(partial(access.access_rule, rule), ("authorization", "rule", index, "filters"), report)
