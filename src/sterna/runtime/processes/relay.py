"""Questions of the group's admin port to the members' own, over Unix sockets."""

from __future__ import annotations

import asyncio
from pathlib import Path

import h11

from sterna.runtime.admin.site import Answer, Request, text

ANSWER_BYTES_MAX = 64 * 1024 * 1024
PATIENCE_S = 8.0
"""Less than a client of the admin port may wait."""

_READ_BYTES = 256 * 1024
#: Headers that say something about one connection only.
_OF_THE_CONNECTION = frozenset({b"connection", b"content-length", b"transfer-encoding", b"keep-alive"})


async def ask(path: Path, asked: Request) -> Answer:
    """A member's answer; 503 if it gives none."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            reader, writer = await asyncio.open_unix_connection(str(path))
            try:
                return await conversation(reader, writer, asked)
            finally:
                writer.close()
    except (OSError, TimeoutError, h11.RemoteProtocolError) as error:
        return text(503, f"process {path.stem} does not answer: {str(error) or 'it took too long'}\n")


async def conversation(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    asked: Request,
    *,
    answer_bytes_max: int = ANSWER_BYTES_MAX,
) -> Answer:
    """One request and its answer; 502 if that is too large.  May raise OSError or h11.RemoteProtocolError."""
    http = h11.Connection(h11.CLIENT)
    kept = [(name, value) for name, value in asked.headers.items() if name not in _OF_THE_CONNECTION]
    if b"host" not in asked.headers:
        kept.append((b"host", b"localhost"))
    kept += [(b"content-length", str(len(asked.body)).encode()), (b"connection", b"close")]
    request = h11.Request(method=asked.method, target=asked.target, headers=kept)
    for sent in (request, h11.Data(data=asked.body), h11.EndOfMessage()):
        writer.write(http.send(sent) or b"")
    response: h11.Response | None = None
    body = bytearray()
    while True:
        event = http.next_event()
        if event is h11.NEED_DATA:
            http.receive_data(await reader.read(_READ_BYTES))
        elif isinstance(event, h11.Response):
            response = event
        elif isinstance(event, h11.Data):
            body += event.data
            if len(body) > answer_bytes_max:
                return text(502, f"a process answers with more than {answer_bytes_max} bytes\n")
        elif response is not None:
            return _answer(response, bytes(body))
        else:
            return text(502, "a process closed the connection\n")


def _answer(response: h11.Response, body: bytes) -> Answer:
    headers = dict(response.headers)
    kind = headers.get(b"content-type", b"text/plain; charset=utf-8").decode("latin-1")
    extra = tuple(
        (name.decode("latin-1"), headers[name].decode("latin-1"))
        for name in (b"www-authenticate", b"allow")
        if name in headers
    )
    return Answer(response.status_code, body, kind, extra)
