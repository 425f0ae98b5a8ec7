"""Who dispatches to a target, and whether it is worth trying: one row per target, changed by
compare-and-set on the database's clock (as Django's Now() reads it, per statement)."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from datetime import timedelta
from time import monotonic
from uuid import UUID, uuid4

from django.conf import settings
from django.db import connection
from django.db.models import QuerySet
from django.db.models.functions import Now

from billing.models import OutboxTarget

# A target may ask us to wait, but not for ever.
_MAX_RETRY_AFTER_S = 300


@dataclass
class Hold:
    """A target that is ours, until `seconds` after we last said so."""

    target: str
    holder: UUID
    seconds: int
    failures_in_a_row: int
    _taken: float = field(default_factory=monotonic)

    @property
    def is_probe(self) -> bool:
        """The breaker was open: the next message finds out whether the target is back."""
        return self.failures_in_a_row >= settings.OUTBOX_BREAKER_AFTER

    def keep(self) -> bool:
        """False: it took too long, and the target is another dispatcher's now."""
        if monotonic() < self._taken + self.seconds / 3:
            return True
        again = take(self.target, seconds=self.seconds, holder=self.holder)
        self._taken = monotonic()
        return again is not None

    def release(self) -> None:
        self._row().update(holder=None, held_until=Now())

    def closed(self) -> None:
        """The target answered: the breaker closes."""
        if self.failures_in_a_row:
            self._row().update(failures_in_a_row=0, open_until=None)
            self.failures_in_a_row = 0

    def failed(self, *, retry_after_s: float | None) -> bool:
        """Count it; whether nothing more is to be sent now."""
        self.failures_in_a_row += 1
        open_s = max(self._open_s(), min(retry_after_s or 0.0, _MAX_RETRY_AFTER_S))
        self._row().update(
            failures_in_a_row=self.failures_in_a_row,
            open_until=Now() + timedelta(seconds=open_s) if open_s else None,
        )
        return open_s > 0

    def _open_s(self) -> float:
        beyond = self.failures_in_a_row - settings.OUTBOX_BREAKER_AFTER
        if beyond < 0:
            return 0.0
        grown = settings.OUTBOX_BREAKER_FIRST_S * 2.0 ** min(beyond, 20)
        return min(grown, settings.OUTBOX_BREAKER_CAP_S) * random.uniform(0.8, 1.2)  # noqa: S311

    def _row(self) -> QuerySet[OutboxTarget]:
        # Whoever lost the target may not write over what its new holder found out.
        return OutboxTarget.objects.filter(name=self.target, holder=self.holder)


def take(target: str, *, seconds: int, holder: UUID | None = None) -> Hold | None:
    """None: another dispatcher has it, or its breaker is open. Of several that try at once one
    wins: the others wait for its row and then find its name in it."""
    holder = holder or uuid4()
    with connection.cursor() as cursor:
        cursor.execute(
            """
            INSERT INTO billing_outboxtarget AS held (name, holder, held_until)
            VALUES (
                %(target)s, %(holder)s,
                statement_timestamp() + make_interval(secs => %(seconds)s)
            )
            ON CONFLICT (name) DO UPDATE
                SET holder = excluded.holder, held_until = excluded.held_until
                WHERE (held.holder IS NULL OR held.holder = excluded.holder
                       OR held.held_until <= statement_timestamp())
                    AND (held.open_until IS NULL OR held.open_until <= statement_timestamp())
            RETURNING failures_in_a_row
            """,
            {"target": target, "holder": holder, "seconds": seconds},
        )
        row = cursor.fetchone()
    return Hold(target, holder, seconds, row[0]) if row else None
