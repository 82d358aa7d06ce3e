"""Ordering a node to move a client, as an operator does, and watching how it goes: through its admin port."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

from sterna.measure.errors import MeasurementError
from sterna.measure.harness.sites import Place

ASK_S = 10.0
LOOK_EVERY_S = 0.005


async def order(place: Place, token: str, client: str, target: str) -> str:
    """At any node; empty, or why it will not be moved."""
    status, text = await _ask(place, token, "POST", "/move", json.dumps({"client": client, "to": target}))
    return "" if status == 200 else text.strip()


async def leaves(place: Place, token: str, client: str, within_s: float) -> float | None:
    """When the node it leaves was done with it; None if it is not in this time."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        told = await _page(place, token, "/migrations")
        if all(one["client"] != client for one in told["leaving"]):
            return time.time()
        await asyncio.sleep(LOOK_EVERY_S)
    return None


async def is_served(place: Place, token: str, client: str, within_s: float) -> float | None:
    """When a node has the client connected; None if it does not in this time."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        told = await _page(place, token, "/clients")
        if any(one["client"] == client and one.get("connected") for one in told):
            return time.time()
        await asyncio.sleep(LOOK_EVERY_S)
    return None


async def _page(place: Place, token: str, page: str) -> Any:
    status, text = await _ask(place, token, "GET", page)
    if status != 200:
        raise MeasurementError(f"{place.host}:{place.admin}{page} says {status}: {text.strip()}")
    return json.loads(text)


async def _ask(place: Place, token: str, method: str, page: str, body: str = "") -> tuple[int, str]:
    proof = f"Authorization: Bearer {token}\r\n" if token else ""
    head = (
        f"{method} {page} HTTP/1.1\r\nHost: {place.host}\r\n{proof}Connection: close\r\n"
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
