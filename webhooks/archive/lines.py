"""One archived event: a line of JSON."""

from __future__ import annotations

import hashlib
import json
from base64 import b64decode, b64encode
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from webhooks.archive.errors import ArchiveDamaged


@dataclass(frozen=True)
class Line:
    id: UUID
    provider: str
    payload_hash: str
    received_at: datetime
    # None: erased with its customer's personal data.
    raw_body: bytes | None
    headers: dict[str, str] = field(default_factory=dict)
    payload: Any = None

    @property
    def redacted(self) -> bool:
        return self.raw_body is None

    def without_personal_data(self) -> Line:
        return replace(self, raw_body=None, headers={}, payload=None)

    def check(self) -> None:
        """That these are the bytes that came in: the hash is from then."""
        if self.raw_body is None:
            return
        # As webhooks.inbox.payload_hash, also for a provider that a later release knows no more.
        if hashlib.sha256(self.provider.encode() + self.raw_body).hexdigest() != self.payload_hash:
            raise ArchiveDamaged(f"event {self.id}: its bytes do not match its hash")


def to_bytes(line: Line) -> bytes:
    document: dict[str, Any] = {
        "id": str(line.id),
        "provider": line.provider,
        "payload_hash": line.payload_hash,
        "received_at": line.received_at.isoformat(),
    }
    if line.raw_body is None:
        document["redacted"] = True
    else:
        document |= {
            "raw_body": b64encode(line.raw_body).decode(),
            "headers": line.headers,
            "payload": line.payload,
        }
    # ASCII only, so that a line break in a payload cannot be one in the file.
    return json.dumps(document, separators=(",", ":")).encode() + b"\n"


def from_bytes(data: bytes) -> Line:
    """Checked. Raises ValueError, KeyError or TypeError for what is no line of ours."""
    document = json.loads(data)
    redacted = document.get("redacted") is True
    line = Line(
        id=UUID(document["id"]),
        provider=document["provider"],
        payload_hash=document["payload_hash"],
        received_at=datetime.fromisoformat(document["received_at"]),
        raw_body=None if redacted else b64decode(document["raw_body"], validate=True),
        headers={} if redacted else document["headers"],
        payload=None if redacted else document["payload"],
    )
    line.check()
    return line
