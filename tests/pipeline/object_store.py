"""An object store that speaks S3, on this machine: moto's server, in a process of its own."""

from __future__ import annotations

import http.client
import socket
import subprocess
import sys
from pathlib import Path
from typing import Self

from live.nodes import wait_until

BUCKET = "archives"
SOON_S = 120


def store_environment(port: int) -> dict[str, str]:
    """Settings by which a process finds the store at that port."""
    return {
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ALLOW_HTTP": "true",
    }


class ObjectStore:
    def __init__(self, port: int, log: Path) -> None:
        self._port = port
        words = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self._port)]
        with log.open("wb") as out:
            self._process = subprocess.Popen(words, stdout=out, stderr=out)

    def __enter__(self) -> Self:
        wait_until(self._answers, "the object store answers", SOON_S)
        assert self.request("PUT", f"/{BUCKET}") == 200
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()

    def request(self, method: str, path: str) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=SOON_S)
        signed = "AWS4-HMAC-SHA256 Credential=key/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"
        try:
            connection.request(method, path, headers={"Authorization": signed})
            return connection.getresponse().status
        finally:
            connection.close()

    def _answers(self) -> bool:
        with socket.socket() as one:
            return one.connect_ex(("127.0.0.1", self._port)) == 0
