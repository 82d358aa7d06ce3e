"""The access control of a configuration: reads its files, loads its keys, builds its rules.

The cores decide who comes in and what they may do, but read no files.  Every function here may raise ConfigurationError
(the contents are wrong) or OSError (the file cannot be read).
"""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import TYPE_CHECKING

from sterna.adaptation.topics import FROM_GATEWAYS, ROOT, TO_GATEWAYS
from sterna.broker.access.authentication import Authenticator
from sterna.broker.access.authorization import AccessList, AccessRule
from sterna.runtime.config.networks import Networks, is_among
from sterna.runtime.config.settings import Authentication, Authorization, ControlTable, RuleTable, Token

if TYPE_CHECKING:
    # Loaded only by a node that is configured with them: together they would be a sixth of its start.
    from sterna.broker.access.passwords import PasswordFile
    from sterna.broker.access.tokens import TokenVerifier
    from sterna.runtime.hooks.access_hook import AccessHook


def authenticator(settings: Authentication) -> Authenticator:
    """Called again when a file has changed: a new one forgets what the old one remembered."""
    return Authenticator(
        passwords=passwords(settings.password_file) if settings.password_file else None,
        tokens=tokens(settings.token) if settings.token else None,
        certificates=settings.certificates,
        nonce=secrets.token_urlsafe,
        asks_hook=settings.hook is not None,
    )


def access_hook(settings: Authentication, node: str) -> AccessHook | None:
    """The program that is asked about clients; it is not started yet."""
    table = settings.hook
    if table is None:
        return None
    from sterna.runtime.hooks.access_hook import AccessHook

    if table.call is not None:
        from sterna.runtime.hooks.process_asker import ProcessAsker

        return AccessHook(table, ProcessAsker(table), node)
    from sterna.runtime.hooks.http_asker import HttpAsker

    return AccessHook(table, HttpAsker(table), node)


def access_list(settings: Authorization, control: ControlTable) -> AccessList:
    return AccessList(
        [access_rule(rule) for rule in settings.rules],
        settings.default,
        settings.client_ids,
        partial_subscriptions=settings.partial_subscriptions,
        control=control_rules(control),
    )


def control_rules(control: ControlTable) -> list[AccessRule]:
    """A gateway speaks and is spoken to on topics that end with its user name."""
    rules = [AccessRule(control.users, (f"{ROOT}/#",))] if control.users else []
    if control.gateways:
        rules.append(AccessRule(control.gateways, (f"{ROOT}/+/{FROM_GATEWAYS}/%u",), "publish"))
        rules.append(AccessRule(control.gateways, (f"{ROOT}/+/{TO_GATEWAYS}/%u",), "subscribe"))
    return rules


def passwords(file: Path) -> PasswordFile:
    from sterna.broker.access.passwords import PasswordFile

    return PasswordFile.parse(file.read_bytes().decode("utf-8", "replace"), str(file))


def tokens(settings: Token) -> TokenVerifier:
    from sterna.broker.access.tokens import TokenVerifier

    keys = {}
    for algorithm in settings.algorithms:
        # An editor ends a file with a newline, but nobody means it to be part of the secret.
        file = key_file(settings, algorithm)
        keys[algorithm] = file.read_bytes().rstrip(b"\r\n") if file else b""
    return TokenVerifier(keys, audience=settings.audience, issuer=settings.issuer)


def key_file(settings: Token, algorithm: str) -> Path | None:
    return settings.secret_file if algorithm.startswith("HS") else settings.public_key_file


def access_rule(rule: RuleTable) -> AccessRule:
    return AccessRule(rule.user, rule.filters, rule.access, rule.effect, rule.client)


def may_be_gateway(allowed: Networks, address: str) -> bool:
    """`address` is that of a connection, with its port.  A client of a Unix socket is trusted."""
    host = address.rpartition(":")[0]
    if not host:
        return True
    return is_among(allowed, host)
