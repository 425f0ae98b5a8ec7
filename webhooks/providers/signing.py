"""Comparing secrets and signatures: always in constant time, always a bounded number."""

import hashlib
import hmac
import re
from collections.abc import Iterable

from billing.codes import ErrorCode
from webhooks.providers.base import Rejected

# A header may carry several signatures during a rotation; a hostile one may carry thousands.
MAX_SIGNATURES = 8
_UNIX_SECONDS = re.compile(r"[0-9]{1,11}", re.ASCII)


def hmac_sha256_hex(secret: str, message: bytes) -> str:
    return hmac.new(secret.encode(), message, hashlib.sha256).hexdigest()


def matching_secret(
    secrets: Iterable[str], message: bytes, signatures: Iterable[str]
) -> str | None:
    """The first secret under which any of the hex signatures is right."""
    candidates = [signature.strip().lower().encode() for signature in signatures]
    for secret in secrets:
        expected = hmac_sha256_hex(secret, message).encode()
        for candidate in candidates[:MAX_SIGNATURES]:
            if hmac.compare_digest(expected, candidate):
                return secret
    return None


def same_secret(secrets: Iterable[str], presented: str) -> str | None:
    for secret in secrets:
        if hmac.compare_digest(secret.encode(), presented.encode()):
            return secret
    return None


def key_id(secret: str) -> str:
    """Tells which of several secrets was used, without telling the secret."""
    return hashlib.sha256(b"key-id:" + secret.encode()).hexdigest()[:12]


def check_signed_time(text: str, *, now_s: float, tolerance_s: int) -> None:
    """Python's int() takes "١٢٣" and " 1_000 ", and 10²⁰ overflows a date: plain digits only."""
    if not _UNIX_SECONDS.fullmatch(text):
        raise Rejected(ErrorCode.TIMESTAMP_EXPIRED, "signed time is not unix seconds")
    if abs(now_s - int(text)) > tolerance_s:
        raise Rejected(ErrorCode.TIMESTAMP_EXPIRED, "signed time is outside the window")
