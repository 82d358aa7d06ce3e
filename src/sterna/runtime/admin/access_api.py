"""Bans, users and access rules by HTTP: the orders of the admin port, and how they become changes at all nodes."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from typing import Annotated, Any, Literal, Protocol

import msgspec

from sterna.broker.access.access_register import BAN_SUBJECTS, EntryKind
from sterna.broker.broker import Broker
from sterna.node.management import ROWS_MAX, Gathered, Management
from sterna.runtime.admin.site import Answer, Request, as_json, text
from sterna.vocabulary.errors import ConfigurationError

BAN_S_MAX = 100 * 365 * 24 * 3600.0


class AccessChanges(Protocol):
    async def change_access(self, kind: EntryKind, name: str, value: dict[str, Any] | None) -> Gathered:
        """Comes back when this node has it safe and the others have answered.  May raise ConfigurationError."""


class BanOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of POST /bans: one of client, user and address."""

    client: str | None = None
    user: str | None = None
    address: str | None = None
    for_s: Annotated[float, msgspec.Meta(gt=0, le=BAN_S_MAX)] | None = None
    """None: until it is lifted."""
    reason: str = ""
    lift: bool = False


class UserOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of POST /users: a password or its hash, or one of bar and reset."""

    user: str
    password: str | None = None
    credential: str | None = None
    bar: bool = False
    reset: bool = False


class RuleOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of POST /access."""

    name: str
    filters: tuple[str, ...] = ()
    user: tuple[str, ...] = ("*",)
    client: tuple[str, ...] = ()
    access: Literal["publish", "subscribe", "both"] = "both"
    effect: Literal["allow", "deny"] = "allow"
    remove: bool = False


async def change_access(
    broker: Broker, management: Management, argument: str, after_work: Callable[[], None]
) -> Gathered:
    """Make a change at all nodes; `argument` is of `administration.order`.  May raise ConfigurationError."""
    if reason := broker.commitments.unavailable:
        raise ConfigurationError(f"the node cannot write: {reason}; nothing was changed, try again later")
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Gathered] = loop.create_future()
    written: asyncio.Future[bool] = loop.create_future()
    management.ask("change", argument, ROWS_MAX, answer.set_result)
    broker.commitments.when_safe(lambda is_safe: None if written.done() else written.set_result(is_safe))
    after_work()
    if not await written:
        raise ConfigurationError("the change counts, but could not be written yet: a crash may undo it")
    return await answer


async def ban(asked: Request, node: AccessChanges) -> Answer:
    def change(order: BanOrder) -> tuple[str, dict[str, Any] | None]:
        named = [f"{subject}:{what}" for subject in BAN_SUBJECTS if (what := getattr(order, subject)) is not None]
        if len(named) != 1:
            raise ConfigurationError("name one of client, user and address")
        until = None if order.for_s is None else time.time() + order.for_s
        return named[0], None if order.lift else {"until": until, "reason": order.reason}

    return await _changed(asked, node, "ban", BanOrder, change)


async def set_user(asked: Request, node: AccessChanges) -> Answer:
    def change(order: UserOrder) -> tuple[str, dict[str, Any] | None]:
        given = [order.password is not None, order.credential is not None, order.bar, order.reset]
        if sum(given) != 1:
            raise ConfigurationError("say one of password, credential, bar and reset")
        if order.reset:
            return order.user, None
        return order.user, {"credential": "" if order.bar else order.credential or _hashed(order)}

    return await _changed(asked, node, "user", UserOrder, change)


def _hashed(order: UserOrder) -> str:
    from sterna.broker.access.passwords import hash_password

    try:
        line = hash_password(order.user, order.password or "", random_bytes=secrets.token_bytes)
    except ValueError as error:
        raise ConfigurationError(str(error)) from None
    return line.partition(":")[2]


async def set_rule(asked: Request, node: AccessChanges) -> Answer:
    def change(order: RuleOrder) -> tuple[str, dict[str, Any] | None]:
        value = {key: getattr(order, key) for key in ("filters", "user", "client", "access", "effect")}
        return order.name, None if order.remove else value

    return await _changed(asked, node, "rule", RuleOrder, change)


async def _changed(
    asked: Request,
    node: AccessChanges,
    kind: EntryKind,
    order: type[Any],
    change: Callable[[Any], tuple[str, dict[str, Any] | None]],
) -> Answer:
    try:
        given = msgspec.json.decode(asked.body, type=order)
        # In a thread: a password may have to be hashed.
        name, value = await asyncio.get_running_loop().run_in_executor(None, change, given)
        return as_json(await node.change_access(kind, name, value))
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        return text(400, f"{error}; / says what to send\n")
    except ConfigurationError as error:
        return text(409, f"{error}\n")
