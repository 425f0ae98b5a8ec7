from django.db import InterfaceError, OperationalError

from billing.outbox.envelopes import Envelope
from billing.outbox.read_model import take
from billing.outbox.sinks import Unreachable


class ViewSink:
    """The read model: a consumer like the others, in this very database."""

    def send(self, message: Envelope) -> None:
        try:
            take(message)
        except (InterfaceError, OperationalError) as error:
            raise Unreachable(type(error).__name__) from error

    def close(self) -> None:
        """It has nothing of its own."""
