"""The one statement that records a fact: finds its payment by any of its names or creates it, locks
it, gives it the names it did not have yet, and appends the fact."""

from billing.models import Fact, Payment

FOLDED_FIELDS = (
    "status",
    "amount",
    "currency",
    "amount_refunded",
    "email",
    "plan_code",
    "merchant_uid",
    "paid_at",
    "failed_at",
    "canceled_at",
)
FACT_FIELDS = tuple(f.attname for f in Fact._meta.concrete_fields if not f.primary_key)
PAYMENT_FIELDS = tuple(field.attname for field in Payment._meta.concrete_fields)

_folded_columns = ", ".join(FOLDED_FIELDS)
_folded_values = ", ".join(f"%(folded_{name})s" for name in FOLDED_FIELDS)
_fact_columns = ", ".join(FACT_FIELDS)
_fact_values = ", ".join(
    "payment.id" if name == "payment_id" else f"%({name})s" for name in FACT_FIELDS
)
_payment_columns = ", ".join(f"payment.{name}" for name in PAYMENT_FIELDS)

# The names are the models' own; every value is a parameter. The updates of `updated_at` are there
# for the payment's lock. An alias that somebody else inserts at this moment is waited for, and
# comes back with the payment that it belongs to. An event that is read as it was read last adds no
# fact; its lock, which the caller holds, keeps that true.
FIND_OR_CREATE = f"""
    WITH name AS MATERIALIZED (
        SELECT * FROM unnest(%(systems)s::text[], %(external_ids)s::text[])
            AS name (system, external_id)
    ), known AS MATERIALIZED (
        SELECT DISTINCT alias.payment_id
        FROM name JOIN billing_paymentalias AS alias USING (system, external_id)
    ), created AS (
        INSERT INTO billing_payment (id, provider, external_payment_id, {_folded_columns})
        SELECT %(payment)s, %(provider)s, %(external_payment_id)s, {_folded_values}
        WHERE %(may_create)s AND NOT EXISTS (SELECT FROM known)
        ON CONFLICT (provider, external_payment_id) DO UPDATE SET updated_at = now()
        RETURNING *, xmax = 0 AS is_new
    ), found AS (
        UPDATE billing_payment SET updated_at = now()
        WHERE id = (SELECT max(payment_id::text)::uuid FROM known HAVING count(*) = 1)
        RETURNING *, false AS is_new
    ), payment AS (
        SELECT * FROM created UNION ALL SELECT * FROM found
    ), alias AS (
        INSERT INTO billing_paymentalias AS alias (system, external_id, payment_id)
        SELECT name.system, name.external_id, payment.id FROM payment CROSS JOIN name
        WHERE NOT EXISTS (
            SELECT FROM billing_paymentalias AS taken
            WHERE (taken.system, taken.external_id) = (name.system, name.external_id)
        )
        ORDER BY name.system, name.external_id
        ON CONFLICT (system, external_id) DO UPDATE SET payment_id = alias.payment_id
        RETURNING payment_id
    ), fact AS (
        INSERT INTO billing_fact ({_fact_columns})
        SELECT {_fact_values} FROM payment
        WHERE %(reading)s IS DISTINCT FROM (
            SELECT reading FROM billing_fact
            WHERE event_id = %(event_id)s ORDER BY id DESC LIMIT 1
        )
    )
    SELECT {_payment_columns}, is_new, (SELECT count(*) FROM known),
        (SELECT coalesce(bool_and(alias.payment_id = payment.id), true) FROM alias),
        now(), pg_current_xact_id()::text
    FROM (SELECT) AS one_row LEFT JOIN payment ON true
"""  # noqa: S608
