"""What beat runs (the schedule is in config/celery.py). All state is in PostgreSQL, so a task
that is lost, late or run twice does no harm."""

import structlog
from celery import shared_task
from django.conf import settings

from billing.outbox.messages import write
from billing.telling import subscription_expired
from subscriptions.expiry import expire
from webhooks import audit, forgeries, metrics
from webhooks.api.idempotency import clean_answers
from webhooks.audit import SCHEDULE, Action
from webhooks.invariants.running import check, snapshot, violated
from webhooks.leases import lease
from webhooks.linking import sweep_linkable_payments
from webhooks.recovery import recover
from webhooks.transactions import short_transaction

logger = structlog.get_logger("webhooks")

EXPIRE_BATCH = 500
# Below CELERY_TASK_TIME_LIMIT, which would leave the lease behind.
INVARIANTS_AT_MOST_S = 540


@shared_task(name="webhooks.recover")
def recover_task() -> None:
    # Ends before the next tick: workers share what is due, so a longer backlog just goes on.
    results = recover(for_s=settings.WEBHOOK_SWEEP_EVERY_S * 0.9)
    if results:
        logger.info("recovered", **results)


@shared_task(name="webhooks.link_waiting")
def link_waiting_task() -> None:
    with lease("link_waiting", seconds=300) as ours:
        if ours and (applied := sweep_linkable_payments()):
            logger.info("payments_linked", number=applied)


@shared_task(name="webhooks.expire_subscriptions")
def expire_subscriptions_task() -> None:
    with lease("expire_subscriptions", seconds=300) as ours:
        while ours:
            expired = expire_batch()
            if expired:
                logger.info("subscriptions_expired", number=expired)
            if expired < EXPIRE_BATCH:
                break


def expire_batch() -> int:
    with short_transaction():
        expired = expire(limit=EXPIRE_BATCH)
        audit.write(
            *(
                audit.entry(
                    Action.SUBSCRIPTION_EXPIRED,
                    SCHEDULE,
                    subscription_id=row.subscription_id,
                    user_id=row.user_id,
                )
                for row in expired
            )
        )
        write(*(subscription_expired(row) for row in expired))
    return len(expired)


@shared_task(name="webhooks.prune_forged")
def prune_forged_task() -> None:
    with lease("prune_forged", seconds=300) as ours:
        if ours and (pruned := forgeries.prune()):
            logger.info("forged_samples_pruned", number=pruned)


@shared_task(name="webhooks.clean_idempotent_answers")
def clean_idempotent_answers_task() -> None:
    if cleaned := clean_answers():
        logger.info("idempotent_answers_cleaned", number=cleaned)


@shared_task(name="webhooks.check_invariants", soft_time_limit=INVARIANTS_AT_MOST_S)
def check_invariants_task() -> None:
    with lease("check_invariants", seconds=600) as ours:
        if not ours:
            return
        with snapshot():
            findings = list(check())
        metrics.show_invariants(findings, all_checked=True)
        for finding in violated(findings):
            logger.error(
                "invariant_violated",
                rule=finding.rule,
                number=finding.number,
                examples=list(finding.examples),
            )
