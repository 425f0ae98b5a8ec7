from uuid import UUID

from uuid_utils.compat import uuid7


def time_ordered_id() -> UUID:
    """UUIDv7: new rows land at the end of their index, not all over it."""
    return uuid7()
