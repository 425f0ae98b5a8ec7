"""Who works in the back office."""

from webhooks.audit import Actor

ANNA = Actor("staff:anna", is_person=True)
