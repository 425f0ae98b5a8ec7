"""Does the web server of this container take requests? `python -m config.healthcheck`"""

from __future__ import annotations

import http.client
import os


def main() -> None:
    connection = http.client.HTTPConnection("127.0.0.1", int(os.environ["PORT"]), timeout=4)
    connection.request("GET", "/webhooks/health", headers={"Host": _allowed_host()})
    # Any answer will do: restarting the web server would not bring back a database.
    print(connection.getresponse().status)


def _allowed_host() -> str:
    first = os.environ.get("ALLOWED_HOSTS", "").split(",")[0].strip()
    return first.lstrip(".") if first not in {"", "*"} else "localhost"


if __name__ == "__main__":
    main()
