"""Checks of a node's settings: ranges, addresses, files that can be read, and safety by default.

Nothing listens beyond this machine without authentication, unless the operator says so in as many words.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from msgspec.structs import replace

from sterna.broker.access.authorization import ANONYMOUS, EVERYBODY, check_client_pattern
from sterna.operators.functions import Functions
from sterna.runtime.config import access
from sterna.runtime.config.feed_rules import check_feed, check_filter
from sterna.runtime.config.files import attempt
from sterna.runtime.config.interworking_rules import check_interworking
from sterna.runtime.config.network_rules import check_network
from sterna.runtime.config.networks import networks
from sterna.runtime.config.problems import ProblemReport
from sterna.runtime.config.process_rules import check_admin, check_origins, check_ranges, check_tls
from sterna.runtime.config.process_tables import ListenerTable
from sterna.runtime.config.schema import Bind
from sterna.runtime.config.settings import Authentication, Configuration, NodeListener, Token
from sterna.runtime.config.toml_source import Place
from sterna.runtime.functions.settings import FunctionTable
from sterna.runtime.hooks.settings import HookTable
from sterna.runtime.telemetry.settings import TelemetryTable
from sterna.vocabulary.extras import how_to_add

FUNCTION_MEMORY_MIN = 256 * 1024 * 1024


def apply_rules(configuration: Configuration, tree: dict[str, Any], report: ProblemReport) -> Configuration:
    """Fill in the defaults that depend on other settings, then report every rule that is broken."""
    completed = _completed(configuration, tree)
    check_ranges(completed, (), report)
    _check_name(completed, report)
    attempt(partial(networks, completed.mqtt.gateways), ("mqtt", "gateways"), report)
    _check_addresses(completed, report)
    _check_authentication(completed, report)
    _check_listeners(completed, report)
    _check_authorization(completed, report)
    _check_control(completed, report)
    check_admin(completed.admin, report)
    check_network(completed, report)
    check_feed(completed, report)
    check_interworking(completed, report)
    for index, choice in enumerate(completed.operators.engines):
        check_filter(choice.filter, ("operators", "engines", index, "filter"), report)
    _check_functions(completed.functions, report)
    _check_telemetry(completed.telemetry, report)
    return completed


def _completed(configuration: Configuration, tree: dict[str, Any]) -> Configuration:
    """`anonymous` follows the bind and the default effect follows the rules, unless the operator spoke.

    An operator who asks for passwords or tokens means them: then no listener takes clients without, loopback or not.
    """
    authentication = configuration.authentication
    checks_users = authentication.password_file or authentication.token or authentication.hook
    said = [_table(item) for item in _list(tree.get("listener"))] or [{}]
    is_proxy = configuration.interworking is not None and configuration.interworking.mode == "proxy"
    listeners = tuple(
        _completed_listener(listener, words, checks_users=bool(checks_users), is_proxy=is_proxy)
        for listener, words in zip(configuration.listeners, said, strict=False)
    )
    authorization, admin = configuration.authorization, configuration.admin
    if authorization.rules and "default" not in _table(tree.get("authorization")):
        authorization = replace(authorization, default="deny")
    if admin.bind and "anonymous" not in _table(tree.get("admin")):
        admin = replace(admin, anonymous=admin.bind.is_local)
    node = replace(configuration.node, data=configuration.node.data.absolute())
    return replace(configuration, node=node, listeners=listeners, authorization=authorization, admin=admin)


def _completed_listener(
    listener: NodeListener, words: dict[str, Any], *, checks_users: bool, is_proxy: bool
) -> NodeListener:
    if "serves" not in words and is_proxy:
        listener = replace(listener, serves="broker")
    if "anonymous" not in words:
        # Users of the foreign broker are its own to check.
        is_checked = checks_users and listener.serves == "node"
        listener = replace(listener, anonymous=listener.bind.is_local and not is_checked)
    return listener


def _table(raw: Any) -> dict[str, Any]:
    return raw if isinstance(raw, dict) else {}


def _list(raw: Any) -> list[Any]:
    return raw if isinstance(raw, list) else []


def _check_name(configuration: Configuration, report: ProblemReport) -> None:
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


def _check_addresses(configuration: Configuration, report: ProblemReport) -> None:
    if not configuration.listeners:
        report.add(("listener",), "there is none, so no client could connect", "add a [[listener]] table")
    taken: dict[Bind, Place] = {}
    for place, bind in _binds(configuration):
        is_fixed = bind.port != 0 or bind.path
        if is_fixed and taken.setdefault(bind, place) != place:
            line = report.line_of(taken[bind])
            report.add(place, f"{bind} is already taken" + (f" in line {line}" if line else ""), "use another port")


def _check_authentication(configuration: Configuration, report: ProblemReport) -> None:
    settings = configuration.authentication
    if settings.password_file:
        attempt(partial(access.passwords, settings.password_file), ("authentication", "password_file"), report)
    if settings.certificates and not any(listener.client_ca for listener in configuration.listeners):
        place = ("authentication", "certificates")
        report.add(place, "no listener asks for certificates", "set client_ca in a [[listener]]")
    if settings.token:
        _check_token(settings.token, report)
    if settings.hook:
        _check_hook(settings.hook, report)


def _check_telemetry(telemetry: TelemetryTable, report: ProblemReport) -> None:
    place = ("telemetry", "endpoint")
    if telemetry.endpoint is None:
        return
    if not re.fullmatch(r"https?://[^\s/]+(/\S*)?", telemetry.endpoint):
        report.add(place, f'"{telemetry.endpoint}" is no address', 'write "http://127.0.0.1:4318/v1/traces"')
    if importlib.util.find_spec("opentelemetry") is None:
        report.add(place, "the packages of OpenTelemetry are not installed", how_to_add("telemetry"))


def _check_hook(hook: HookTable, report: ProblemReport) -> None:
    place = ("authentication", "hook")
    if (hook.url is None) == (hook.call is None):
        report.add(place, "it needs an address or a function", "set one of url and call")
        return
    if hook.call is not None and not re.fullmatch(r"[\w.]+:[\w.]+", hook.call):
        report.add((*place, "call"), f'"{hook.call}" is no function', "write module:function")
    if hook.url is not None:
        _check_hook_url(hook, hook.url, place, report)


def _check_hook_url(hook: HookTable, url: str, place: Place, report: ProblemReport) -> None:
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        host = None
    if host is None or parts.scheme not in ("http", "https"):
        report.add((*place, "url"), f'"{url}" is no address', "write https://host:port/path")
        return
    is_near = host == "localhost" or host.startswith("127.") or host == "::1"
    if parts.scheme == "http" and not is_near and not hook.unencrypted:
        fix = "use https://, or say unencrypted = true"
        report.add((*place, "url"), f"passwords would go to {host} as they are", fix)
    attempt(partial(access.access_hook, Authentication(hook=hook), "check"), (*place, "url"), report)


def _check_token(token: Token, report: ProblemReport) -> None:
    from sterna.broker.access.tokens import ALGORITHMS  # with the library behind it, which few nodes need

    place = ("authentication", "token")
    missing = [name for name in token.algorithms if name in ALGORITHMS and not access.key_file(token, name)]
    for name in missing:
        key = "secret_file" if name.startswith("HS") else "public_key_file"
        report.add((*place, key), f"is missing, and {name} needs it", "name the file")
    if not missing:
        attempt(partial(access.tokens, token), (*place, "algorithms"), report)


def _check_listeners(configuration: Configuration, report: ProblemReport) -> None:
    authentication = configuration.authentication
    checks_users = bool(authentication.password_file or authentication.token or authentication.hook)
    for index, listener in enumerate(configuration.listeners):
        place: Place = ("listener", index)
        check_tls(listener, place, report)
        check_origins(listener, (*place, "allowed_origins"), report)
        attempt(partial(networks, listener.proxies), (*place, "proxies"), report)
        # A client without a certificate gets through TLS where none is required; without a name it is refused then.
        shows_certificate = listener.require_certificate or authentication.certificates
        is_guarded = checks_users or (shows_certificate and listener.client_ca)
        if listener.serves == "broker":
            _check_relayed(configuration, listener, place, report)
            continue
        if not is_guarded and not listener.anonymous and report.is_sound("authentication"):
            _refuse_unguarded(listener, (*place, "bind"), report)


def _check_relayed(configuration: Configuration, listener: NodeListener, place: Place, report: ProblemReport) -> None:
    """A listener whose clients are relayed to a foreign broker, as if this machine were their own."""
    table = configuration.interworking
    if table is None or table.mode != "proxy":
        fix = 'set mode = "proxy" in [interworking], or serves = "node"'
        report.add((*place, "serves"), "there is no foreign broker to relay clients to", fix)
    if not listener.anonymous and not (listener.require_certificate and listener.client_ca):
        text = f"{listener.bind} lets other machines reach the foreign broker as if they were this one"
        fix = "set require_certificate and client_ca, or say anonymous = true if the broker asks for passwords"
        report.add((*place, "bind"), text, fix)


def _refuse_unguarded(listener: ListenerTable, place: Place, report: ProblemReport) -> None:
    if listener.bind.is_local:
        text = f"nobody could connect to {listener.bind}: anonymous is false and nothing checks users"
    else:
        text = f"{listener.bind} can be reached from other machines and nothing checks who connects"
    fix = "set password_file in [authentication] (see `sterna passwd`), or say anonymous = true in this [[listener]]"
    report.add(place, text, fix)


def _check_functions(table: FunctionTable, report: ProblemReport) -> None:
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


def _check_control(configuration: Configuration, report: ProblemReport) -> None:
    """Users who are named can be told apart only where something checks who they are."""
    control, authentication = configuration.adaptation, configuration.authentication
    named = [user for user in (*control.users, *control.gateways) if user not in (ANONYMOUS, EVERYBODY)]
    by_name = authentication.password_file or authentication.token or authentication.hook
    checks = by_name or authentication.certificates
    if named and not checks and report.is_sound("authentication"):
        fix = "set password_file in [authentication] (see `sterna passwd`)"
        report.add(("adaptation", "users"), f'nothing checks who is "{named[0]}"', fix)
    if EVERYBODY in control.users:
        report.add(("adaptation", "users"), '"*" would let every client speak as a coordinator', "name the users")


def _check_authorization(configuration: Configuration, report: ProblemReport) -> None:
    for pattern in configuration.authorization.client_ids:
        attempt(partial(check_client_pattern, pattern), ("authorization", "client_ids"), report)
    for index, rule in enumerate(configuration.authorization.rules):
        attempt(partial(access.access_rule, rule), ("authorization", "rule", index, "filters"), report)
