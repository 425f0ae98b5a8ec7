from collections.abc import Iterator
from contextlib import contextmanager

from django.conf import settings
from django.db import connection, transaction


@contextmanager
def short_transaction() -> Iterator[None]:
    """A transaction that can neither wait nor linger for long.

    The limits are local to it (SET LOCAL), so they hold behind PgBouncer's transaction mode
    too. The idle limit frees the locks of a process that was stopped, not killed, half-way.
    """
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT set_config('lock_timeout', %s, true),"
                " set_config('statement_timeout', %s, true),"
                " set_config('idle_in_transaction_session_timeout', %s, true)",
                [
                    str(settings.LOCK_TIMEOUT_MS),
                    str(settings.STATEMENT_TIMEOUT_MS),
                    str(2 * settings.STATEMENT_TIMEOUT_MS),
                ],
            )
        yield
