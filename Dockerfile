FROM python:3.11-slim

ENV PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1

# A fixed number, so that file permissions on mounted volumes can name it.
RUN useradd --uid 10001 --user-group --no-create-home --shell /usr/sbin/nologin tollgate

WORKDIR /app

# Before the code, so that a change of code does not install everything again.
COPY requirements.txt requirements-kafka.txt ./
RUN pip install -r requirements.txt
# 1: with the client for Kafka targets.
ARG KAFKA=0
RUN if [ "$KAFKA" = 1 ]; then pip install -r requirements-kafka.txt; fi

COPY manage.py docker-entrypoint.sh ./
COPY config config
COPY webhooks webhooks
COPY billing billing
COPY subscriptions subscriptions
COPY templates templates

# The settings insist on a key; this one is used for nothing and stays in no layer's environment.
RUN SECRET_KEY=only-for-collecting-the-static-files-when-the-image-is-built ALLOWED_HOSTS=unused \
    python manage.py collectstatic --noinput

# A volume that is mounted here for the first time belongs to us by that.
RUN install --directory --owner=10001 --group=10001 /archive

USER 10001:10001
ENV HOST=0.0.0.0 \
    ARCHIVE_DIR=/archive \
    PROMETHEUS_MULTIPROC_DIR=/tmp/prometheus
EXPOSE 8000
ENTRYPOINT ["./docker-entrypoint.sh"]
CMD ["python", "-m", "config.serve"]
