"""Targets as the environment names them; what is wrong with them is said when a process starts."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from urllib.parse import urlsplit

from django.core.exceptions import ImproperlyConfigured

from billing.outbox.targets import READ_MODEL, Kind, Target

_NAME = re.compile(r"[a-z][a-z0-9-]{0,30}")
_LOOPBACK = {"localhost", "127.0.0.1", "::1"}


def read_targets(read: Callable[[str], str], *, debug: bool) -> tuple[Target, ...]:
    """`OUTBOX_TARGETS=crm:http,bus:redis` and each one's own variables. `read` gives a variable's
    value, or '' where it is not set."""
    words = [word for part in read("OUTBOX_TARGETS").split(",") if (word := part.strip())]
    targets = tuple(_Reader(word, read, debug=debug).target() for word in words)
    variables = [_variable(target.name, "") for target in targets]
    if len(set(variables)) < len(variables):
        raise ImproperlyConfigured("OUTBOX_TARGETS: two targets share a name")
    return targets


def read_options(name: str, text: str) -> dict[str, str]:
    """librdkafka's own settings: `security.protocol=SASL_SSL,sasl.mechanism=PLAIN`."""
    pairs = [part.partition("=") for part in text.split(",") if part.strip()]
    if any(not key.strip() or not equals for key, equals, _ in pairs):
        raise ImproperlyConfigured(f"{name} must be key=value,key=value")
    return {key.strip(): value.strip() for key, _, value in pairs}


class _Reader:
    """One target's variables. Messages name the variable, never its value."""

    def __init__(self, word: str, read: Callable[[str], str], *, debug: bool) -> None:
        self._name, _, kind = word.partition(":")
        self._read = read
        self._debug = debug
        if not _NAME.fullmatch(self._name) or self._name == READ_MODEL:
            raise ImproperlyConfigured(
                f"OUTBOX_TARGETS: {self._name!r} is no name for a target: small letters, digits "
                f"and dashes, at most 31, and not {READ_MODEL!r}"
            )
        if kind not in (Kind.HTTP, Kind.REDIS, Kind.KAFKA):
            raise ImproperlyConfigured(
                f"OUTBOX_TARGETS: {self._name} must be one of "
                f"{self._name}:http, {self._name}:redis, {self._name}:kafka"
            )
        self._kind = Kind(kind)

    def target(self) -> Target:
        target = Target(
            name=self._name,
            kind=self._kind,
            rate=self._number("RATE", 0),
            timeout_s=self._number("TIMEOUT_S", 10, at_least=1),
        )
        match self._kind:
            case Kind.HTTP:
                return replace(target, url=self._http_url(), secret=self._secret())
            case Kind.REDIS:
                return replace(
                    target,
                    # Unset: the Redis that Tollgate itself uses.
                    url=self._text("URL"),
                    stream=self._text("STREAM") or "tollgate.messages",
                    max_length=self._number("MAXLEN", 1_000_000, at_least=1),
                )
            case _:
                return replace(
                    target,
                    servers=self._required("SERVERS"),
                    topic=self._required("TOPIC"),
                    options=read_options(_variable(self._name, "OPTIONS"), self._text("OPTIONS")),
                )

    def _http_url(self) -> str:
        url = self._required("URL")
        parts = urlsplit(url)
        variable = _variable(self._name, "URL")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ImproperlyConfigured(f"{variable} must be an address that begins with https://")
        if parts.username is not None or parts.password is not None:
            raise ImproperlyConfigured(f"{variable} must not carry a user name or password")
        if parts.scheme == "http" and not self._debug and parts.hostname not in _LOOPBACK:
            raise ImproperlyConfigured(
                f"{variable} must be https: what we tell is not for everybody"
            )
        return url

    def _secret(self) -> str:
        secret = self._required("SECRET")
        if len(secret) < 24:
            raise ImproperlyConfigured(
                f"{_variable(self._name, 'SECRET')} must have at least 24 characters"
            )
        from billing.outbox.sinks.http import signer

        try:
            signer(secret)
        except ValueError as error:
            raise ImproperlyConfigured(
                f"{_variable(self._name, 'SECRET')} begins with whsec_, but is not base64 after it"
            ) from error
        return secret

    def _number(self, suffix: str, default: int, *, at_least: int = 0) -> int:
        text = self._text(suffix)
        if not text:
            return default
        if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text) >= at_least):
            raise ImproperlyConfigured(
                f"{_variable(self._name, suffix)} must be a whole number, at least {at_least}"
            )
        return int(text)

    def _required(self, suffix: str) -> str:
        text = self._text(suffix)
        if not text:
            raise ImproperlyConfigured(
                f"{_variable(self._name, suffix)} is not set: "
                f"the target {self._name}:{self._kind} needs it"
            )
        return text

    def _text(self, suffix: str) -> str:
        return self._read(_variable(self._name, suffix)).strip()


def _variable(target: str, suffix: str) -> str:
    return f"OUTBOX_{target.upper().replace('-', '_')}_{suffix}"
