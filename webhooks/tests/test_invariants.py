"""Each rule fires when it is broken, none fires when it is not."""

from __future__ import annotations

from collections.abc import Iterator
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command
from django.db import Error as DatabaseError
from django.db import InternalError, connection
from pytest_django import Settings

from billing.models import Order, Payment
from subscriptions.models import Plan, User
from tests.busy import make_busy
from tests.factories import OrderFactory, UserFactory
from tests.invariants import assert_invariants
from tests.logs import Logs
from tests.looking import counted, in_another_connection
from tests.sending import deliver, paid
from webhooks import tasks
from webhooks.audit import Actor
from webhooks.invariants.running import RULES, check, snapshot, violated
from webhooks.leases import lease
from webhooks.metrics import exposition
from webhooks.models import WebhookEvent
from webhooks.redaction import Wish, redact
from webhooks.tests import breaking
from webhooks.tests.archiving import archive, old_event

committed = pytest.mark.django_db(transaction=True)
