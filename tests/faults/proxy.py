"""A line to PostgreSQL that can be cut at the worst moment: the work is done, its reply is lost."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Thread
from urllib.parse import urlsplit

from psycopg.conninfo import conninfo_to_dict


class Proxy:
    def __init__(self, upstream_url: str) -> None:
        self._upstream = conninfo_to_dict(upstream_url)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._to_lose: bytes | None = None
        self.lost = 0
        port = self._listener.getsockname()[1]
        user, path = self._upstream["user"], urlsplit(upstream_url).path
        self.url = f"postgresql://{user}@127.0.0.1:{port}{path}"

    def lose_reply_to(self, command: str) -> None:
        """The next time PostgreSQL says that such a command is complete, nobody hears it."""
        self._to_lose = command.encode() + b"\0"

    def serve(self) -> None:
        with suppress(OSError):  # closed
            while True:
                client, _ = self._listener.accept()
                server = self._connect()
                Thread(target=self._pump, args=[client, server, False], daemon=True).start()
                Thread(target=self._pump, args=[server, client, True], daemon=True).start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _connect(self) -> socket.socket:
        host, port = str(self._upstream["host"]), int(self._upstream.get("port") or 5432)
        if not host.startswith("/"):
            return socket.create_connection((host, port))
        upstream = socket.socket(socket.AF_UNIX)
        upstream.connect(os.path.join(host, f".s.PGSQL.{port}"))  # noqa: PTH118
        return upstream

    def _pump(self, source: socket.socket, target: socket.socket, replies: bool) -> None:
        # The other direction's thread is woken by the shutdown, and closes its own end.
        with source, suppress(OSError):
            while (data := source.recv(65536)) and not (replies and self._is_to_be_lost(data)):
                target.sendall(data)
            for end in (source, target):
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def _is_to_be_lost(self, data: bytes) -> bool:
        if self._to_lose is None or self._to_lose not in data:
            return False
        self._to_lose = None
        self.lost += 1
        return True


@contextmanager
def proxy_to(url: str) -> Iterator[Proxy]:
    proxy = Proxy(url)
    Thread(target=proxy.serve, daemon=True).start()
    try:
        yield proxy
    finally:
        proxy.close()
