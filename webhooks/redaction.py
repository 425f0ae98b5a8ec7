"""Forget a person, not their money: what was paid, given and decided stays, under ids alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from uuid import UUID

from django.contrib.admin.models import LogEntry
from django.contrib.auth.hashers import make_password
from django.contrib.contenttypes.models import ContentType
from django.db.models.functions import Now

from billing.fold import Folded, fold
from billing.models import Fact, Payment
from subscriptions.models import User
from webhooks import audit
from webhooks.archive import files
from webhooks.archive.clearing import complete, rewrite
from webhooks.archive.leasing import archive_to_ourselves
from webhooks.archive.lines import Line
from webhooks.archive.manifests import read_contents
from webhooks.audit import Action, Actor
from webhooks.models import WebhookEvent
from webhooks.redaction_scope import Scope, find, never, only_by_force, payments_told_of
from webhooks.transactions import short_transaction

# While a customer's events keep coming in, what was found is not yet all.
MAX_ROUNDS = 5


class CannotRedact(Exception):
    """Something stands against it; the text is for the person, and names no e-mail."""


@dataclass(frozen=True)
class Wish:
    email: str
    reason: str
    actor: Actor
    force: bool = False


def objections(scope: Scope, *, force: bool) -> list[str]:
    return never(scope) + ([] if force else only_by_force(scope))


def look(email: str) -> Scope:
    return find(email, payments_told_of(email))


def redact(wish: Wish, on_file: Callable[[], object] = int) -> Scope:
    """Archive files first, then everything in the database at once: until that, the e-mail still
    leads to all of it, so that a run that was killed is simply run again.

    Returns what was erased; raises CannotRedact or ArchiveError.
    """
    with archive_to_ourselves() as renew:
        files.remove_unfinished()
        for name in files.leftovers():
            # A file that a killed archiver left may hold what the rows hold as well.
            complete(name, actor=wish.actor, renew=renew)
        for _round in range(MAX_ROUNDS):
            scope = look(wish.email)
            if not scope:
                return scope
            _begin(scope, wish)
            for name, events in scope.by_file.items():
                renew()
                _redact_file(name, events)
                on_file()
            if _redact_rows(scope, wish):
                return scope
    raise CannotRedact("its events keep coming in: try again later")


def _begin(scope: Scope, wish: Wish) -> None:
    """Said before anything is erased: a file cannot be part of a transaction."""
    with short_transaction():
        _refuse(scope, wish)
        _write_audit(scope, wish, began=True)


def _refuse(scope: Scope, wish: Wish) -> None:
    if found := objections(scope, force=wish.force):
        raise CannotRedact("; ".join(found))


def _redact_file(name: str, events: set[UUID]) -> None:
    if events <= read_contents(files.path_of(name)).redacted:
        return  # By a run before this one.

    def erase(line: Line) -> Line:
        return line.without_personal_data() if line.id in events else line

    rewrite(name, erase)


def _redact_rows(scope: Scope, wish: Wish) -> bool:
    """False: something came in since, which must be looked at first."""
    with short_transaction():
        _lock(scope)
        if find(wish.email, scope.payments) != scope:
            return False
        _refuse(scope, wish)
        WebhookEvent.objects.filter(pk__in=scope.events, raw_body__isnull=False).update(
            raw_body=None, payload=None, headers={}, source_ip=None
        )
        for payment in Payment.objects.filter(pk__in=scope.payments):
            _redact_payment(payment, scope)
        if scope.user_id:
            _redact_user(scope.user_id)
        _write_audit(scope, wish, began=False)
    return True


def _lock(scope: Scope) -> None:
    """Events, then payments, by id: as everywhere."""
    events = WebhookEvent.objects.filter(pk__in=scope.events).order_by("pk")
    payments = Payment.objects.filter(pk__in=scope.payments).order_by("pk")
    for rows in (events, payments):
        list(rows.select_for_update(no_key=True).values_list("pk", flat=True))


def _redact_payment(payment: Payment, scope: Scope) -> None:
    before = fold(payment.facts.all())
    Fact.objects.filter(payment=payment, pk__in=scope.facts).update(email=None)
    after = fold(payment.facts.all())
    if _but_for_the_buyer(before) != _but_for_the_buyer(after):
        raise CannotRedact(f"payment {payment.pk} would be another one without its e-mail")
    # Its user, if it has one, stays: what was given stays given.
    Payment.objects.filter(pk=payment.pk).update(email=after.email, updated_at=Now())


def _but_for_the_buyer(folded: Folded) -> Folded:
    return replace(folded, email=None, purchases_disagree=False)


def _redact_user(user_id: UUID) -> None:
    """`.invalid` is nobody's, for ever (RFC 2606)."""
    placeholder = f"redacted-{user_id}@redacted.invalid"
    # Not by save(): a changed e-mail would look for payments that wait for it.
    User.objects.filter(pk=user_id).update(
        email=placeholder,
        email_verified_at=None,
        is_active=False,
        password=make_password(None),
        last_login=None,
        updated_at=Now(),
    )
    # The back office writes down what it called the user.
    LogEntry.objects.filter(
        content_type=ContentType.objects.get_for_model(User), object_id=str(user_id)
    ).update(object_repr=placeholder)


def _write_audit(scope: Scope, wish: Wish, *, began: bool) -> None:
    audit.write(
        audit.entry(
            Action.CUSTOMER_REDACTED,
            wish.actor,
            reason=wish.reason,
            user_id=scope.user_id,
            details={"step": "began" if began else "done", "forced": wish.force, **scope.counts},
        )
    )
