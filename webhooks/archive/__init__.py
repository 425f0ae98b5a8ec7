"""What old events brought, in compressed files. The row keeps everything that answers questions
about money: ids, hashes, the outcome; the archive keeps what proves and replays it."""

from webhooks.archive.errors import ArchiveDamaged, ArchiveError, ArchiveMissing, EventRedacted
from webhooks.archive.reading import Kept, read

__all__ = ["ArchiveDamaged", "ArchiveError", "ArchiveMissing", "EventRedacted", "Kept", "read"]
