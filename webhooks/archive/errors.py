"""What can be wrong with the archive. The texts name files and ids, never content."""


class ArchiveError(Exception):
    """What an event brought cannot be read, or cannot be put away."""


class ArchiveMissing(ArchiveError):
    """The file that the event's row names is not there. Nothing is lost while a backup has it."""


class ArchiveDamaged(ArchiveError):
    """The file is there, and does not hold what was put into it."""


class EventRedacted(ArchiveError):
    """What the event brought was erased with its customer's personal data, for good."""


class ArchiverBusy(ArchiveError):
    """Somebody else works on the archive."""
