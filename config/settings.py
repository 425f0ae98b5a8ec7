"""Environment → settings. docs/operations.md lists every variable with its default."""

import os
from pathlib import Path
from typing import Any

import dj_database_url
from django.core.exceptions import ImproperlyConfigured

from billing.outbox.target_settings import read_options, read_targets
from config import env as environment
from config import logging as log_config

BASE_DIR = Path(__file__).resolve().parent.parent
DATA_DIR = Path(os.environ.get("TOLLGATE_DATA_DIR") or BASE_DIR / ".data")
env = environment.read(DATA_DIR)

DEBUG = env.flag("DEBUG")
SECRET_KEY = env.text("SECRET_KEY")
if not DEBUG and (len(SECRET_KEY) < 50 or SECRET_KEY.startswith("django-insecure")):
    raise ImproperlyConfigured(
        "SECRET_KEY must be set to at least 50 random characters (DEBUG=1, or `make run`, "
        "is the way to try Tollgate without one)."
    )
SECRET_KEY = SECRET_KEY or "django-insecure-only-for-debug"
ALLOWED_HOSTS = list(env.words("ALLOWED_HOSTS")) or (
    ["localhost", "127.0.0.1", "[::1]"] if DEBUG else []
)
if not ALLOWED_HOSTS:
    raise ImproperlyConfigured(
        "ALLOWED_HOSTS must name the host that providers call: without it every webhook is refused."
    )
CSRF_TRUSTED_ORIGINS = list(env.words("CSRF_TRUSTED_ORIGINS"))
PORT = env.number("PORT", 8000)

# --- Webhooks -------------------------------------------------------------------------------
# {"TILDA": ("new-secret", "old-secret")}: every one listed is accepted, so secrets rotate
# without a gap. A signing provider without a secret is off.
WEBHOOK_SECRETS = env.words_by_suffix("WEBHOOK_SECRETS_")
WEBHOOK_MAX_BODY_BYTES = env.number("WEBHOOK_MAX_BODY_BYTES", 1024 * 1024)
WEBHOOK_SIGNED_TIME_TOLERANCE_S = 300
WEBHOOK_LATE_AFTER_S = env.number("WEBHOOK_LATE_AFTER_S", 24 * 3600)
# A stored event is due this long after it came in, should the process that took it die.
WEBHOOK_FIRST_DUE_AFTER_S = env.number("WEBHOOK_FIRST_DUE_AFTER_S", 60)
WEBHOOK_SWEEP_EVERY_S = env.number("WEBHOOK_SWEEP_EVERY_S", 30)
WEBHOOK_MAX_ATTEMPTS = env.number("WEBHOOK_MAX_ATTEMPTS", 8)
WEBHOOK_WAIT_FOR_USER_DAYS = env.number("WEBHOOK_WAIT_FOR_USER_DAYS", 30)
WEBHOOK_FORGED_ROWS_KEPT = env.number("WEBHOOK_FORGED_ROWS_KEPT", 1000)
WEBHOOK_FORGED_ROWS_PER_SOURCE = env.number("WEBHOOK_FORGED_ROWS_PER_SOURCE", 50)
WEBHOOK_FORGED_DAYS_KEPT = env.number("WEBHOOK_FORGED_DAYS_KEPT", 7)
# "Older than X" in alerts and health: an event due for longer than this is stuck.
WEBHOOK_STUCK_AFTER_S = env.number("WEBHOOK_STUCK_AFTER_S", 3600)
ACCEPT_TEST_PAYMENTS = env.flag("ACCEPT_TEST_PAYMENTS")
if ACCEPT_TEST_PAYMENTS and not DEBUG:
    raise ImproperlyConfigured("ACCEPT_TEST_PAYMENTS gives away real goods: only with DEBUG=1.")
LINK_VERIFIED_EMAILS_ONLY = env.flag("LINK_VERIFIED_EMAILS_ONLY")
# Providers whose payments this system starts itself: a callback about one that it does not know
# waits for its number instead of making a payment.
INITIATED_PROVIDERS = env.words("INITIATED_PROVIDERS")
# Where `archive_events` puts what old events brought, and where it is read from again.
ARCHIVE_DIR = Path(env.text("ARCHIVE_DIR") or DATA_DIR / "archive")

# --- Telling others (the outbox), and being told ----------------------------------------------
OUTBOX_TARGETS = read_targets(env.text, debug=DEBUG)
# The safety behind the wake-ups: dispatchers look this often anyway.
OUTBOX_SWEEP_EVERY_S = env.number("OUTBOX_SWEEP_EVERY_S", 1)
OUTBOX_MAX_ATTEMPTS = env.number("OUTBOX_MAX_ATTEMPTS", 10)
# 1, 2, 4, 8 s … between the attempts of a message, up to the cap.
OUTBOX_RETRY_FIRST_S = env.number("OUTBOX_RETRY_FIRST_S", 1)
OUTBOX_RETRY_CAP_S = env.number("OUTBOX_RETRY_CAP_S", 300)
# After so many failures in a row a target is left alone, for 5, 10, 20 s … up to the cap.
OUTBOX_BREAKER_AFTER = env.number("OUTBOX_BREAKER_AFTER", 5)
OUTBOX_BREAKER_FIRST_S = env.number("OUTBOX_BREAKER_FIRST_S", 5)
OUTBOX_BREAKER_CAP_S = env.number("OUTBOX_BREAKER_CAP_S", 60)
if 0 in (OUTBOX_SWEEP_EVERY_S, OUTBOX_MAX_ATTEMPTS, OUTBOX_RETRY_FIRST_S, OUTBOX_BREAKER_AFTER):
    raise ImproperlyConfigured(
        "OUTBOX_SWEEP_EVERY_S, OUTBOX_MAX_ATTEMPTS, OUTBOX_RETRY_FIRST_S and OUTBOX_BREAKER_AFTER "
        "must be at least 1."
    )
# Where `consume_payments` reads PaymentInitiated from.
CONSUME_GROUP = env.text("CONSUME_GROUP", "tollgate")
CONSUME_REDIS_URL = env.text("CONSUME_REDIS_URL") or env.text("REDIS_URL")
CONSUME_STREAM = env.text("CONSUME_STREAM", "payments.initiated")
# A message that a consumer took and did not finish for so long is anybody's.
CONSUME_CLAIM_AFTER_S = env.number("CONSUME_CLAIM_AFTER_S", 60)
CONSUME_SERVERS = env.text("CONSUME_SERVERS")
CONSUME_TOPIC = env.text("CONSUME_TOPIC", "payments.initiated")
CONSUME_OPTIONS = read_options("CONSUME_OPTIONS", env.text("CONSUME_OPTIONS"))

# --- Database -------------------------------------------------------------------------------
DATABASE_URL = env.text("DATABASE_URL")
DATABASES: dict[str, Any] = {
    "default": dj_database_url.parse(
        DATABASE_URL or "postgresql://localhost/tollgate", conn_max_age=600
    )
}
DATABASES["default"].setdefault("OPTIONS", {}).update(
    # libpq parameters, not server settings, so that PgBouncer's transaction mode works. A
    # database that cannot be reached must become a 503 within two seconds.
    connect_timeout=2,
    tcp_user_timeout=5000,
    keepalives_idle=30,
)
# Set with SET LOCAL at the start of each of our transactions (webhooks/transactions.py).
LOCK_TIMEOUT_MS = env.number("LOCK_TIMEOUT_MS", 3000)
STATEMENT_TIMEOUT_MS = env.number("STATEMENT_TIMEOUT_MS", 5000)
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
AUTH_USER_MODEL = "subscriptions.User"

# --- Celery (the beat schedule is in config/celery.py) ----------------------------------------
REDIS_URL = env.text("REDIS_URL")
CELERY_BROKER_URL = REDIS_URL.replace("unix://", "redis+socket://", 1) or "redis://localhost:6379/0"
CELERY_TASK_IGNORE_RESULT = True
CELERY_TASK_TIME_LIMIT = 600
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_BROKER_CONNECTION_MAX_RETRIES = None
# Without socket timeouts a publish to a black-holed Redis hangs for 45 seconds and more.
CELERY_BROKER_TRANSPORT_OPTIONS = {
    "socket_connect_timeout": 1,
    "socket_timeout": 5,
    "socket_keepalive": True,
    "health_check_interval": 10,
}

# --- Django ---------------------------------------------------------------------------------
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django_prometheus",
    "django_structlog",
    "rest_framework",
    "subscriptions",
    "billing",
    "webhooks",
]
MIDDLEWARE = [
    "django_prometheus.middleware.PrometheusBeforeMiddleware",
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "django_structlog.middlewares.RequestMiddleware",
    "config.middleware.BoundedPrometheusAfterMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]
ROOT_URLCONF = "config.urls"
WSGI_APPLICATION = "config.wsgi.application"
# A redirect would turn a provider's POST into a GET; every URL works with and without the slash.
APPEND_SLASH = False
STATIC_URL = "/static/"
STATIC_ROOT = BASE_DIR / "staticfiles"
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "whitenoise.storage.CompressedStaticFilesStorage"},
}
WHITENOISE_USE_FINDERS = DEBUG
WHITENOISE_AUTOREFRESH = DEBUG
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"django.contrib.auth.password_validation.{name}"}
    for name in (
        "UserAttributeSimilarityValidator",
        "MinimumLengthValidator",
        "CommonPasswordValidator",
        "NumericPasswordValidator",
    )
]
LANGUAGE_CODE = "en-us"
TIME_ZONE = "UTC"
USE_TZ = True
REST_FRAMEWORK = {
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PERMISSION_CLASSES": ["rest_framework.permissions.IsAdminUser"],
    "EXCEPTION_HANDLER": "webhooks.errors.error_response",
}

# --- Transport security -----------------------------------------------------------------------
TRUSTED_PROXIES = env.words("TRUSTED_PROXIES")
if TRUSTED_PROXIES:
    SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
SECURE_SSL_REDIRECT = not DEBUG
# Providers must never meet a redirect, and the container's health check speaks plain HTTP. The API
# refuses plain HTTP itself: a redirect would turn a POST into a GET.
SECURE_REDIRECT_EXEMPT = [r"^webhooks/", r"^api/", r"^metrics$"]
SECURE_HSTS_SECONDS = 0 if DEBUG else 31_536_000
SECURE_HSTS_INCLUDE_SUBDOMAINS = not DEBUG
SECURE_HSTS_PRELOAD = not DEBUG
SESSION_COOKIE_SECURE = not DEBUG
CSRF_COOKIE_SECURE = not DEBUG
X_FRAME_OPTIONS = "DENY"

# --- Seeing -----------------------------------------------------------------------------------
# In production each container serves its metrics on METRICS_PORT, off the public listener.
METRICS_ON_WEB = env.flag("METRICS_ON_WEB", default=DEBUG)
LOGGING_CONFIG = None
log_config.apply(level=env.text("LOG_LEVEL", "INFO").upper())
# The webhook view writes its own line; the middleware is there for the request id.
DJANGO_STRUCTLOG_STATUS_DEFAULT_LOG_LEVEL = 10
DJANGO_STRUCTLOG_STATUS_4XX_LOG_LEVEL = 10
DJANGO_STRUCTLOG_STATUS_5XX_LOG_LEVEL = 10
# It would believe any X-Forwarded-For.
DJANGO_STRUCTLOG_IP_LOGGING_ENABLED = False
