"""A worker's questions and orders to the admin port of its own node.  Nobody else has a hand on it."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import h11
import msgspec

from sterna.migration.gateway_moves import GatewayPage
from sterna.runtime.admin.site import Answer, Request
from sterna.runtime.config.schema import Bind
from sterna.runtime.processes.relay import conversation
from sterna.vocabulary.errors import SternaError

PATIENCE_S = 8.0
PAGES_MAX = 8
"""Pages of gateways that are read: 8,000 gateways at one node."""
CLOSED_RATE = 0.001
"""An evacuation that closes the node and moves nobody for a quarter of an hour: gateways are moved one by one."""


class NodeSilent(SternaError):
    """The node does not answer, or says no."""


class NodeAdmin:
    def __init__(self, node: str, address: str, token_file: Path | None) -> None:
        self._node = node
        self._bind = Bind.parse(address)
        self._token_file = token_file
        self.answer_s = 0.0
        """How long the last answer took: about as late as the node's loop is."""

    async def is_ready(self) -> bool:
        try:
            return (await self._ask("GET", "/readyz")).status == 200
        except NodeSilent:
            return False

    async def network(self) -> dict[str, Any]:
        return await self._json("/network")

    async def drain(self) -> dict[str, Any]:
        return await self._json("/drain")

    async def gateways(self) -> GatewayPage:
        """All pages in one, with the busiest topics."""
        whole = page = await self._page("/gateways?flows=1")
        for _ in range(PAGES_MAX - 1):
            if not page.more:
                break
            page = await self._page(f"/gateways?after={page.more}")
            whole.gateways += page.gateways
        return whole

    async def _page(self, page: str) -> GatewayPage:
        try:
            return msgspec.convert(await self._json(page), GatewayPage)
        except msgspec.ValidationError as error:
            raise NodeSilent(f"{page}: {error}") from None

    async def move_gateway(self, gateway: str, to: str) -> dict[str, Any]:
        return await self._json("/move", {"gateway": gateway, "to": to})

    async def close(self) -> None:
        await self._json("/evacuate", {"node": self._node, "rate": CLOSED_RATE})

    async def evacuate(self, rate: float) -> None:
        await self._json("/evacuate", {"node": self._node, "rate": rate})

    async def open(self) -> None:
        await self._json("/evacuate", {"node": self._node, "stop": True})

    async def _json(self, page: str, change: dict[str, Any] | None = None) -> dict[str, Any]:
        body = b"" if change is None else msgspec.json.encode(change)
        answer = await self._ask("GET" if change is None else "POST", page, body)
        if answer.status != 200:
            raise NodeSilent(answer.body.decode("utf-8", "replace").strip() or f"{page} answers {answer.status}")
        try:
            return msgspec.json.decode(answer.body, type=dict[str, Any])
        except msgspec.MsgspecError as error:
            raise NodeSilent(f"{page}: {error}") from None

    async def _ask(self, method: str, page: str, body: bytes = b"") -> Answer:
        headers = {b"host": b"localhost", b"content-type": b"application/json"}
        if self._token_file is not None:
            headers[b"authorization"] = b"Bearer " + self._token_file.read_bytes().strip()
        began = time.monotonic()
        try:
            async with asyncio.timeout(PATIENCE_S):
                reader, writer = await self._connect()
                try:
                    answer = await conversation(reader, writer, Request(method, page, headers, body))
                finally:
                    writer.close()
        except (OSError, TimeoutError, h11.RemoteProtocolError) as error:
            raise NodeSilent(f"the node's admin port does not answer: {str(error) or 'it took too long'}") from None
        self.answer_s = time.monotonic() - began
        return answer

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._bind.path:
            return await asyncio.open_unix_connection(self._bind.path)
        return await asyncio.open_connection(self._bind.host, self._bind.port)
