"""What beat runs of the money's own (the schedule is in config/celery.py)."""

import structlog
from celery import shared_task

from billing.outbox.read_model import clean_processed

logger = structlog.get_logger("billing")


@shared_task(name="billing.clean_processed_messages")
def clean_processed_messages_task() -> None:
    # Two at once delete different rows, or none: no lease is needed.
    if cleaned := clean_processed():
        logger.info("processed_messages_cleaned", number=cleaned)
