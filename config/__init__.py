# Celery's command line looks for the app here (`celery -A config`), and importing it with
# Django makes @shared_task bind to it.
from config.celery import app as celery_app

__all__ = ["celery_app"]
