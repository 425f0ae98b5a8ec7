from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from uuid import UUID

from django.db.models.functions import Now

from webhooks.archive.errors import ArchiverBusy
from webhooks.leases import lease
from webhooks.models import Lease

JOB = "archive"
# Renewed while work goes on: after a kill -9 the next run waits at most this long.
LEASE_S = 120


@contextmanager
def archive_to_ourselves() -> Iterator[Callable[[], None]]:
    """Whoever changes files of the archive does it inside of this, and calls what it yields every
    now and then. Raises ArchiverBusy."""
    with lease(JOB, seconds=LEASE_S) as ours:
        if not ours:
            raise ArchiverBusy(
                f"somebody else works on the archive, or was killed less than {LEASE_S} s ago: "
                "try again later"
            )
        holder = Lease.objects.values_list("holder", flat=True).get(job=JOB)
        yield partial(_renew, holder)


def _renew(holder: UUID) -> None:
    rows = Lease.objects.filter(job=JOB, holder=holder).update(
        expires_at=Now() + timedelta(seconds=LEASE_S)
    )
    if rows != 1:
        raise ArchiverBusy("this took longer than its lease, and somebody else took over")
