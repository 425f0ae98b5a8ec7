"""Targets come from the environment only, and what is wrong with them is said at the start."""

from __future__ import annotations

import builtins
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from pytest_django import Settings

from billing.outbox.sinks import open_sink
from billing.outbox.target_settings import read_options, read_targets
from billing.outbox.targets import Kind, Target, target_names
from tests.telling import SECRET, target

GOOD = {
    "OUTBOX_TARGETS": "crm:http, bus:redis,data-lake:kafka",
    "OUTBOX_CRM_URL": "https://crm.example.com/hooks",
    "OUTBOX_CRM_SECRET": SECRET,
    "OUTBOX_CRM_RATE": "20",
    "OUTBOX_BUS_STREAM": "events",
    "OUTBOX_DATA_LAKE_SERVERS": "kafka-1:9092,kafka-2:9092",
    "OUTBOX_DATA_LAKE_TOPIC": "payments",
    "OUTBOX_DATA_LAKE_OPTIONS": "security.protocol=SASL_SSL, sasl.password=a=b",
}


def read(changed: dict[str, str] | None = None, *, debug: bool = False) -> tuple[Target, ...]:
    values = {**GOOD, **(changed or {})}
    return read_targets(lambda name: values.get(name, ""), debug=debug)


def test_targets_are_read():
    crm, bus, lake = read()
    assert (crm.name, crm.kind, crm.url, crm.rate) == ("crm", Kind.HTTP, GOOD["OUTBOX_CRM_URL"], 20)
    assert (bus.kind, bus.stream, bus.max_length) == (Kind.REDIS, "events", 1_000_000)
    assert (lake.kind, lake.topic) == (Kind.KAFKA, "payments")
    assert lake.servers == "kafka-1:9092,kafka-2:9092"
    assert lake.options == {"security.protocol": "SASL_SSL", "sasl.password": "a=b"}


def test_without_any_only_the_read_model_is_told(settings: Settings):
    assert read({"OUTBOX_TARGETS": ""}) == ()
    settings.OUTBOX_TARGETS = ()
    assert target_names() == ["read-model"]
    settings.OUTBOX_TARGETS = (target("crm"),)
    assert target_names() == ["read-model", "crm"]


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"OUTBOX_TARGETS": "crm"}, "crm must be one of crm:http, crm:redis, crm:kafka"),
        ({"OUTBOX_TARGETS": "crm:smtp"}, "must be one of"),
        ({"OUTBOX_TARGETS": "Crm:http"}, "'Crm' is no name"),
        ({"OUTBOX_TARGETS": "read-model:http"}, "is no name"),
        ({"OUTBOX_TARGETS": "bus:redis,bus:redis"}, "two targets share a name"),
        ({"OUTBOX_CRM_URL": ""}, "OUTBOX_CRM_URL is not set"),
        ({"OUTBOX_CRM_URL": "ftp://crm.example.com"}, "OUTBOX_CRM_URL must be an address"),
        ({"OUTBOX_CRM_URL": "https:///hooks"}, "OUTBOX_CRM_URL must be an address"),
        ({"OUTBOX_CRM_URL": "http://crm.example.com"}, "OUTBOX_CRM_URL must be https"),
        ({"OUTBOX_CRM_URL": "https://me:pw@crm.example.com"}, "must not carry a user name"),
        ({"OUTBOX_CRM_SECRET": ""}, "OUTBOX_CRM_SECRET is not set"),
        ({"OUTBOX_CRM_SECRET": "short"}, "OUTBOX_CRM_SECRET must have at least 24"),
        ({"OUTBOX_CRM_SECRET": "whsec_!!!!!!!!!!!!!!!!!!!!!!!"}, "is not base64"),
        ({"OUTBOX_CRM_RATE": "fast"}, "OUTBOX_CRM_RATE must be a whole number"),
        ({"OUTBOX_CRM_TIMEOUT_S": "0"}, "OUTBOX_CRM_TIMEOUT_S must be a whole number, at least 1"),
        ({"OUTBOX_DATA_LAKE_TOPIC": " "}, "OUTBOX_DATA_LAKE_TOPIC is not set"),
        ({"OUTBOX_DATA_LAKE_SERVERS": ""}, "OUTBOX_DATA_LAKE_SERVERS is not set"),
        ({"OUTBOX_DATA_LAKE_OPTIONS": "acks"}, "OUTBOX_DATA_LAKE_OPTIONS must be key=value"),
    ],
)
def test_a_misconfigured_target_is_named(changed: dict[str, str], told: str):
    with pytest.raises(ImproperlyConfigured, match=told) as caught:
        read(changed)
    assert SECRET not in str(caught.value)
    assert "pw" not in str(caught.value)


def test_plain_http_is_for_debug_and_loopback():
    assert read({"OUTBOX_CRM_URL": "http://127.0.0.1:9/"})[0].url
    assert read({"OUTBOX_CRM_URL": "http://[::1]:9/"})[0].url
    assert read({"OUTBOX_CRM_URL": "http://crm.example.com/"}, debug=True)[0].url


def test_secrets_do_not_show():
    for shown in map(repr, read()):
        assert SECRET not in shown
        assert "a=b" not in shown


def test_options_may_be_empty():
    assert read_options("X", "") == {}


def test_kafka_without_its_library_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    real = builtins.__import__

    def without_kafka(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "confluent_kafka":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_kafka)
    with pytest.raises(ImproperlyConfigured, match=r"requirements-kafka\.txt"):
        open_sink(target(kind=Kind.KAFKA, servers="x", topic="t"))
