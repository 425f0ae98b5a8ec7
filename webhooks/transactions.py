from collections.abc import Iterator
from contextlib import contextmanager

from django.conf import settings
from django.db import connection, transaction

# SET LOCAL, as a statement that takes parameters: what it sets ends with the transaction, so it
# holds behind PgBouncer's transaction mode too. The idle limit frees the locks of a process that
# was stopped, not killed, half-way.
LIMITS = """
    SELECT set_config('lock_timeout', %(lock_timeout)s, true),
        set_config('statement_timeout', %(statement_timeout)s, true),
        set_config('idle_in_transaction_session_timeout', %(idle_timeout)s, true)
"""


def limits() -> dict[str, str]:
    return {
        "lock_timeout": str(settings.LOCK_TIMEOUT_MS),
        "statement_timeout": str(settings.STATEMENT_TIMEOUT_MS),
        "idle_timeout": str(2 * settings.STATEMENT_TIMEOUT_MS),
    }


@contextmanager
def short_transaction() -> Iterator[None]:
    """A transaction that can neither wait nor linger for long."""
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute(LIMITS, limits())
        yield
