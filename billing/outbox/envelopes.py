"""A message on its way: what every sink sends, and every consumer gets."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID


@dataclass(frozen=True)
class Envelope:
    id: UUID
    type: str
    key: UUID
    # Per key, without gaps; None for messages from elsewhere, which count nothing.
    seq: int | None
    idempotency_key: str
    timestamp: datetime
    data: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        return {
            "id": str(self.id),
            "type": self.type,
            "key": str(self.key),
            "seq": self.seq,
            "idempotency_key": self.idempotency_key,
            "timestamp": self.timestamp.isoformat(),
            "data": self.data,
        }

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Envelope:
        return cls(
            id=UUID(document["id"]),
            type=document["type"],
            key=UUID(document["key"]),
            seq=document["seq"],
            idempotency_key=document["idempotency_key"],
            timestamp=datetime.fromisoformat(document["timestamp"]),
            data=document["data"],
        )
