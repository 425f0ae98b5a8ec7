"""The Celery app and the whole beat schedule."""

import os

from celery import Celery
from celery.signals import setup_logging, worker_init
from django.conf import settings

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")

app = Celery("tollgate")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()


@app.on_after_finalize.connect
def schedule(sender: Celery, **_kwargs: object) -> None:
    def every(seconds: int, task: str) -> dict[str, object]:
        # A tick nobody took before the next one came is dropped, so ticks cannot pile up while
        # the workers are away. All state is in PostgreSQL: a lost tick loses nothing.
        return {"task": task, "schedule": seconds, "options": {"expires": seconds}}

    sender.conf.beat_schedule = {
        "recover-due-events": every(settings.WEBHOOK_SWEEP_EVERY_S, "webhooks.recover"),
        "link-waiting-payments": every(300, "webhooks.link_waiting"),
        "expire-subscriptions": every(60, "webhooks.expire_subscriptions"),
        "prune-forged-events": every(600, "webhooks.prune_forged"),
        "clean-processed-messages": every(3600, "billing.clean_processed_messages"),
        "check-invariants": every(900, "webhooks.check_invariants"),
        "clean-idempotent-answers": every(3600, "webhooks.clean_idempotent_answers"),
    }


@setup_logging.connect
def keep_our_logging(**_kwargs: object) -> None:
    """Connecting this signal stops Celery from replacing the JSON logging of settings."""


@worker_init.connect
def serve_metrics(**_kwargs: object) -> None:
    from config import metrics_listener

    metrics_listener.start_if_configured()
