"""Who is told: the read model always, and whom the environment names. Nothing else can make
Tollgate call an address."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from django.conf import settings

READ_MODEL = "read-model"


class Kind(StrEnum):
    READ_MODEL = "read-model"
    HTTP = "http"
    REDIS = "redis"
    KAFKA = "kafka"


@dataclass(frozen=True, kw_only=True)
class Target:
    name: str
    kind: Kind
    # Messages a second; 0 is as fast as it goes.
    rate: int = 0
    # For one try, connecting included.
    timeout_s: int = 10
    # An address may carry a password.
    url: str = field(default="", repr=False)
    secret: str = field(default="", repr=False)
    stream: str = ""
    max_length: int = 0
    topic: str = ""
    servers: str = ""
    options: dict[str, str] = field(default_factory=dict, repr=False)


def all_targets() -> tuple[Target, ...]:
    return (Target(name=READ_MODEL, kind=Kind.READ_MODEL), *settings.OUTBOX_TARGETS)


def target_names() -> list[str]:
    return [target.name for target in all_targets()]
