from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from webhooks.api.tokens import NameInUse, Scope, create_token, revoke_token
from webhooks.audit import Actor
from webhooks.models import ServiceToken

DEFAULT_DAYS, MOST_DAYS = 365, 3650
MAX_NAME_CHARS = 64


class Command(BaseCommand):
    help = (
        "Make a service token for the API and print it, once: only its hash is kept. "
        "With --revoke: end the one of that name at once."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name", help="whose token it is; shown in the audit log")
        parser.add_argument("--scope", action="append", choices=list(Scope), default=[])
        parser.add_argument("--expires-days", type=int, default=DEFAULT_DAYS)
        parser.add_argument("--revoke", action="store_true")
        parser.add_argument("--reason", default="", help="of a revocation, for the audit log")

    def handle(self, *args: Any, **options: Any) -> None:
        name: str = options["name"]
        if options["revoke"]:
            self._revoke(name, reason=options["reason"][:500])
        else:
            self._create(name, scopes=options["scope"], days=options["expires_days"])

    def _create(self, name: str, *, scopes: list[str], days: int) -> None:
        if not (0 < len(name) <= MAX_NAME_CHARS and name.isascii() and name.isprintable()):
            raise CommandError(f"the name must have 1 to {MAX_NAME_CHARS} printable characters")
        if not scopes:
            raise CommandError(f"at least one --scope is needed: {', '.join(Scope)}")
        if not 0 < days <= MOST_DAYS:
            raise CommandError(f"--expires-days must be 1 to {MOST_DAYS}")
        try:
            token, secret = create_token(
                name,
                [Scope(scope) for scope in scopes],
                expires_days=days,
                actor=Actor.command_line(),
            )
        except NameInUse as error:
            raise CommandError(f"there is, or was, a token named {name}: choose another") from error
        self.stderr.write(
            f"Token {name} ({', '.join(token.scopes)}), valid until {token.expires_at:%Y-%m-%d}. "
            "It cannot be shown again:"
        )
        self.stdout.write(secret)

    def _revoke(self, name: str, *, reason: str) -> None:
        token = ServiceToken.objects.filter(name=name).first()
        if token is None:
            raise CommandError(f"there is no token named {name}")
        if not revoke_token(token, Actor.command_line(), reason):
            raise CommandError(f"{name} was revoked before")
        self.stdout.write(f"{name} is revoked.")
