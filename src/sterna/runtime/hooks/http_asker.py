"""Asks the access hook by HTTP: one POST with JSON for each question, over connections of their own."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from urllib.parse import urlsplit

import h11

from sterna.runtime.admin.site import Request
from sterna.runtime.hooks.access_hook import HookFailed
from sterna.runtime.hooks.settings import HookTable
from sterna.runtime.processes.relay import conversation

CONNECTIONS_MAX = 32
ANSWER_BYTES_MAX = 64 * 1024


class HttpAsker:
    def __init__(self, table: HookTable) -> None:
        """May raise OSError."""
        url = urlsplit(table.url or "")
        self._host = url.hostname or ""
        self._port = url.port or (443 if url.scheme == "https" else 80)
        self._target = (url.path or "/") + (f"?{url.query}" if url.query else "")
        self._tls = _context(table.ca) if url.scheme == "https" else None
        self._headers = {b"host": url.netloc.rpartition("@")[2].encode(), b"content-type": b"application/json"}
        if table.token_file is not None:
            self._headers[b"authorization"] = b"Bearer " + table.token_file.read_bytes().strip()
        self._room = asyncio.Semaphore(CONNECTIONS_MAX)

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def ask(self, question: bytes) -> bytes:
        async with self._room:
            reader, writer = await asyncio.open_connection(self._host, self._port, ssl=self._tls)
            try:
                asked = Request("POST", self._target, self._headers, question)
                answer = await conversation(reader, writer, asked, answer_bytes_max=ANSWER_BYTES_MAX)
            except h11.RemoteProtocolError as error:
                raise HookFailed(f"it speaks no HTTP: {error}") from None
            finally:
                writer.close()
        if answer.status != 200:
            raise HookFailed(f"status {answer.status}")
        return answer.body


def _context(ca: Path | None) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if ca is not None:
        context.load_verify_locations(ca)
    return context
