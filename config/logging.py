"""Every log line is one JSON object on standard output, ours and the libraries' alike."""

import logging
import logging.config
import sys
import traceback
from typing import Any

import structlog
from structlog.typing import EventDict, WrappedLogger


def apply(level: str) -> None:
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _exception_without_its_message,
    ]
    logging.config.dictConfig(_stdlib_config(level, shared))
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )


def _stdlib_config(level: str, shared: list[Any]) -> dict[str, Any]:
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "filters": {"not_a_webhook": {"()": NotAWebhook}},
        "formatters": {
            "json": {
                "()": structlog.stdlib.ProcessorFormatter,
                "processors": [
                    structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                    structlog.processors.JSONRenderer(),
                ],
                "foreign_pre_chain": [structlog.stdlib.ExtraAdder(allow=[]), *shared],
            }
        },
        "handlers": {
            "stdout": {
                "class": "logging.StreamHandler",
                "formatter": "json",
                "stream": "ext://sys.stdout",
            }
        },
        "root": {"handlers": ["stdout"], "level": level},
        "loggers": {
            "django.request": {"filters": ["not_a_webhook"]},
            # They announce every task at INFO; our tasks log what they did.
            "django_structlog.celery": {"level": "WARNING"},
            "celery.app.trace": {"level": "WARNING"},
            "celery.beat": {"level": "WARNING"},
            "celery.worker.strategy": {"level": "WARNING"},
            "httpx": {"level": "WARNING"},
        },
    }


class NotAWebhook(logging.Filter):
    """A webhook gets exactly one line, from its view; Django's second one is dropped."""

    def filter(self, record: logging.LogRecord) -> bool:
        request = getattr(record, "request", None)
        return not getattr(request, "path", "").startswith("/webhooks/")


def _exception_without_its_message(
    logger: WrappedLogger, method: str, event: EventDict
) -> EventDict:
    """An exception's text may quote a payload (PostgreSQL's "Failing row contains …"), so a
    line carries its type and where it came from, never what it says."""
    raised = event.pop("exc_info", None)
    if not raised:
        return event
    if isinstance(raised, BaseException):
        raised = (type(raised), raised, raised.__traceback__)
    elif raised is True or not isinstance(raised, tuple):
        raised = sys.exc_info()
    kind, _error, trace = raised
    if kind is not None:
        event["exception"] = kind.__name__
        event["frames"] = [
            f"{frame.filename}:{frame.lineno} {frame.name}"
            for frame in traceback.extract_tb(trace)[-8:]
        ]
    return event
