"""The admin port of a node, as an operator uses it: read a page, order a move, watch how it goes."""

from __future__ import annotations

import asyncio
import http.client
import json
import time
from collections.abc import Callable, Sequence
from typing import Any

from sterna.measure.errors import MeasurementError
from sterna.measure.harness.sites import NodePlace

ASK_S = 10.0
LOOK_S = 2.0
LOOK_EVERY_S = 0.005


def page(host: str, port: int, path: str, token: str = "") -> str | None:
    """None if the node does not answer, or with an error."""
    connection = http.client.HTTPConnection(host, port, timeout=LOOK_S)
    try:
        connection.request("GET", path, headers={"Authorization": f"Bearer {token}"} if token else {})
        answer = connection.getresponse()
        return answer.read().decode() if answer.status == 200 else None
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


async def unix_page(path: str, name: str, body: str = "") -> str | None:
    """Of an admin port that is a Unix socket; None if it does not answer, or with an error.  `body`: an order."""
    method = "POST" if body else "GET"
    head = f"{method} {name} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    try:
        async with asyncio.timeout(LOOK_S):
            reader, writer = await asyncio.open_unix_connection(path)
            try:
                writer.write((head + body).encode())
                answer = (await reader.read()).decode()
            finally:
                writer.close()
            await writer.wait_closed()
    except (OSError, TimeoutError):
        return None
    begin, _, text = answer.partition("\r\n\r\n")
    return text if begin.startswith("HTTP/1.1 200") else None


async def order(place: NodePlace, token: str, client: str, target: str) -> str:
    """At any node; empty, or why it will not be moved."""
    status, text = await _ask(place, token, "POST", "/move", json.dumps({"client": client, "to": target}))
    return "" if status == 200 else text.strip()


async def leaves(place: NodePlace, token: str, client: str, within_s: float) -> float | None:
    """When the node it leaves was done with it; None if it is not in this time."""
    return await _comes(
        place, token, "/migrations", lambda told: all(one["client"] != client for one in told["leaving"]), within_s
    )


async def is_served(place: NodePlace, token: str, client: str, within_s: float) -> float | None:
    """When a node has the client connected; None if it does not in this time."""
    return await _comes(
        place,
        token,
        "/clients",
        lambda told: any(one["client"] == client and one.get("connected") for one in told),
        within_s,
    )


async def change_neighbours(place: NodePlace, token: str, add: Sequence[str] = (), remove: Sequence[str] = ()) -> None:
    """Links are laid, or cut."""
    body = json.dumps({"add": list(add), "remove": list(remove)})
    status, text = await _ask(place, token, "POST", "/neighbours", body)
    if status != 200:
        raise MeasurementError(f"{place.host}:{place.admin}/neighbours says {status}: {text.strip()}")


async def comes(place: NodePlace, token: str, path: str, holds: Callable[[Any], bool], within_s: float) -> float:
    """When the page first said so; MeasurementError if it does not in this time."""
    at = await _comes(place, token, path, holds, within_s)
    if at is None:
        raise MeasurementError(
            f"{place.host}:{place.admin}{path} did not say within {within_s:g} s what was waited for"
        )
    return at


async def watch(place: NodePlace, token: str, note: Callable[[float, dict[str, Any]], bool]) -> None:
    """Show `note` the page about moves, again and again, until it has seen enough."""
    goes_on = True
    while goes_on:
        goes_on = note(time.time(), await look_at(place, token, "/migrations"))
        await asyncio.sleep(LOOK_EVERY_S)


async def _comes(
    place: NodePlace, token: str, path: str, holds: Callable[[Any], bool], within_s: float
) -> float | None:
    """When the page first said so."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if holds(await look_at(place, token, path)):
            return time.time()
        await asyncio.sleep(LOOK_EVERY_S)
    return None


async def look_at(place: NodePlace, token: str, path: str) -> Any:
    status, text = await _ask(place, token, "GET", path)
    if status != 200:
        raise MeasurementError(f"{place.host}:{place.admin}{path} says {status}: {text.strip()}")
    return json.loads(text)


async def _ask(place: NodePlace, token: str, method: str, path: str, body: str = "") -> tuple[int, str]:
    proof = f"Authorization: Bearer {token}\r\n" if token else ""
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: {place.host}\r\n{proof}Connection: close\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    try:
        async with asyncio.timeout(ASK_S):
            reader, writer = await asyncio.open_connection(place.host, place.admin)
            try:
                writer.write((head + body).encode())
                answer = (await reader.read()).decode()
            finally:
                writer.close()
    except (OSError, TimeoutError) as error:
        raise MeasurementError(f"no answer at {place.host}:{place.admin}: {error or type(error).__name__}") from None
    begin, _, text = answer.partition("\r\n\r\n")
    if not begin.startswith("HTTP/"):
        raise MeasurementError(f"{place.host}:{place.admin} hung up: too many ask it at once")
    return int(begin.split()[1]), text
