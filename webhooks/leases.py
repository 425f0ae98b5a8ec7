from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

from django.db import connection

from webhooks.models import Lease


@contextmanager
def lease(job: str, *, seconds: int) -> Iterator[bool]:
    """Yields whether the job is ours. Of several workers that start at once one wins; a holder
    that died loses it by time. The clock is the database's."""
    holder = uuid4()
    won = _take(job, holder=str(holder), seconds=seconds)
    try:
        yield won
    finally:
        if won:
            Lease.objects.filter(job=job, holder=holder).delete()


def _take(job: str, *, holder: str, seconds: int) -> bool:
    with connection.cursor() as cursor:
        cursor.execute(
            """
            INSERT INTO webhooks_lease AS held (job, holder, expires_at)
            VALUES (%(job)s, %(holder)s, now() + make_interval(secs => %(seconds)s))
            ON CONFLICT (job) DO UPDATE
                SET holder = excluded.holder, expires_at = excluded.expires_at
                WHERE held.expires_at <= now()
            """,
            {"job": job, "holder": holder, "seconds": seconds},
        )
        return bool(cursor.rowcount == 1)
