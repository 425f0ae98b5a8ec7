"""Metrics on a port of their own, so that the public listener does not have to show them."""

from __future__ import annotations

import logging
import os
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import django
from django.apps import apps
from django.db import connections

logger = logging.getLogger(__name__)


def start_if_configured() -> None:
    """Serve /metrics on METRICS_PORT, if that is set. For a container's main process."""
    port = os.environ.get("METRICS_PORT")
    if not port:
        return
    if not apps.ready:
        django.setup()
    server = ThreadingHTTPServer((os.environ.get("HOST", "127.0.0.1"), int(port)), _Handler)
    Thread(target=server.serve_forever, name="metrics", daemon=True).start()


class _Handler(BaseHTTPRequestHandler):
    timeout = 5  # seconds that a silent client may hold a thread

    def do_GET(self) -> None:
        if self.path.split("?", 1)[0] != "/metrics":
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        from webhooks import metrics

        try:
            body, content_type = metrics.exposition()
        except Exception:
            logger.exception("metrics_failed")
            self.send_error(HTTPStatus.INTERNAL_SERVER_ERROR)
            return
        finally:
            # Every scrape has a thread of its own, which would take its connection with it.
            connections.close_all()
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the base's name)
        """A scrape every few seconds is not worth a line each."""
