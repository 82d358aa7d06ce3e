"""The access hook: asks a program of the operator's own about each client, within bounds, and fails closed.

One question is asked when a client connects.  The answer says who the client is and which access rules hold for it
before those of the configuration.  No answer, a late one and one that makes no sense turn the client away; it may try
again.  Clients that the hook leaves to others (`ignore`) are checked as if there were no hook.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import logging
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Annotated, Any, Literal, NamedTuple, Protocol

import msgspec

from sterna.broker.access.access_register import RuntimeRule
from sterna.broker.access.authorization import AccessRule
from sterna.broker.access.identity import BY_HOOK, Accepted, Credentials, Refused, is_user_name
from sterna.mqtt.reasons import Reason
from sterna.runtime.hooks.settings import HookTable
from sterna.vocabulary.errors import ConfigurationError, SternaError

CACHED_MAX = 10_000
RULES_MAX = 100
TOLD_EVERY_S = 10.0

log = logging.getLogger("sterna.hook")


class HookFailed(SternaError):
    """There is no answer, or none that makes sense."""


class HookAnswer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The answer of a hook."""

    result: Literal["allow", "deny", "ignore"]
    user: str | None = None
    """The user the client is; as it says itself, if left out."""
    rules: Annotated[list[RuntimeRule], msgspec.Meta(max_length=RULES_MAX)] = []
    """Read before those of the configuration, for this client."""
    expires_s: Annotated[float, msgspec.Meta(gt=0)] | None = None
    """After that time the connection ends, and the client is asked about again."""


class HookVerdict(NamedTuple):
    """`verdict` is None if others are to decide."""

    verdict: Accepted | Refused | None
    granted: tuple[AccessRule, ...] = ()


class Asker(Protocol):
    """The way to the program."""

    async def start(self) -> None: ...

    async def ask(self, question: bytes) -> bytes:
        """JSON in, JSON out.  May raise HookFailed; is cancelled if it takes too long."""

    async def stop(self) -> None: ...


class AccessHook:
    def __init__(self, table: HookTable, asker: Asker, node: str) -> None:
        self.table = table
        self._asker = asker
        self._node = node
        self._key = secrets.token_bytes(32)
        self._cache: OrderedDict[bytes, tuple[HookAnswer, float]] = OrderedDict()
        self._tasks: set[asyncio.Task[None]] = set()
        self._told_at = -TOLD_EVERY_S
        #: Questions that had no answer.
        self.failures = 0

    async def start(self) -> None:
        await self._asker.start()

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await self._asker.stop()

    def submit(self, credentials: Credentials, address: str, done: Callable[[HookVerdict], None]) -> None:
        """`done` is told the verdict, never at once."""
        loop = asyncio.get_running_loop()
        question = self._question(credentials, address)
        # Without the port, which is another one each time.
        key = hashlib.blake2b(question.replace(address.encode(), _host(address)), key=self._key).digest()
        known = self._cache.get(key)
        if known is not None and time.monotonic() < known[1]:
            loop.call_soon(done, _verdict(known[0], credentials))
        elif len(self._tasks) >= self.table.waiting:
            full = Refused(Reason.SERVER_BUSY, "too many clients wait for the access hook; see waiting")
            loop.call_soon(done, HookVerdict(full))
        else:
            task = loop.create_task(self._ask(question, key, credentials, done))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _ask(
        self, question: bytes, key: bytes, credentials: Credentials, done: Callable[[HookVerdict], None]
    ) -> None:
        try:
            async with asyncio.timeout(self.table.time_out_s):
                answer = msgspec.json.decode(await self._asker.ask(question), type=HookAnswer)
            verdict = _verdict(answer, credentials)
        except (HookFailed, TimeoutError, OSError, msgspec.MsgspecError, ValueError, ConfigurationError) as error:
            why = "it takes too long; see time_out_s" if isinstance(error, TimeoutError) else str(error)
            self._failed(why)
            done(HookVerdict(Refused(Reason.SERVER_UNAVAILABLE, f"the access hook does not answer: {why}")))
            return
        if self.table.cache_s:
            # An answer that ends a connection does not let the next one in.
            holds_s = min(self.table.cache_s, answer.expires_s or self.table.cache_s)
            self._cache[key] = answer, time.monotonic() + holds_s
            while len(self._cache) > CACHED_MAX:
                self._cache.popitem(last=False)
        done(verdict)

    def _question(self, credentials: Credentials, address: str) -> bytes:
        password: dict[str, Any] = {"password": None}
        if credentials.password is not None:
            try:
                password = {"password": credentials.password.decode()}
            except UnicodeDecodeError:
                password = {"password_base64": base64.b64encode(credentials.password).decode()}
        return msgspec.json.encode(
            {
                "client": credentials.client_id,
                "user": credentials.username,
                **password,
                "certificate": credentials.certificate_name,
                "address": address,
                "node": self._node,
            }
        )

    def _failed(self, why: str) -> None:
        self.failures += 1
        now = time.monotonic()
        if now - self._told_at >= TOLD_EVERY_S:
            self._told_at = now
            log.error("the access hook does not answer; clients are turned away", extra={"reason": why})


def _host(address: str) -> bytes:
    return address.rpartition(":")[0].encode() or address.encode()


def _verdict(answer: HookAnswer, credentials: Credentials) -> HookVerdict:
    """ConfigurationError or ValueError if the answer makes no sense."""
    if answer.result == "ignore":
        return HookVerdict(None)
    if answer.result == "deny":
        return HookVerdict(Refused(Reason.NOT_AUTHORIZED, "the access hook does not let it in"))
    user = answer.user if answer.user is not None else credentials.username
    if user is not None and not is_user_name(user):
        raise ValueError(f"{user!r} cannot be a user name")
    expires_at = None if answer.expires_s is None else time.time() + answer.expires_s
    granted = tuple(rule.as_rule() for rule in answer.rules)
    return HookVerdict(Accepted(user, expires_at=expires_at, way=BY_HOOK), granted)
