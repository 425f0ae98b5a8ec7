from django.db import migrations

# The read model is fed by messages alone: a payment from before there were any gets its first one.
TELL = """
INSERT INTO billing_outboxmessage (id, key, seq, type, idempotency_key, data)
SELECT gen_random_uuid(), id, 1, 'PaymentImported', 'PaymentImported:' || id || ':upgrade',
    jsonb_build_object('payment', jsonb_build_object(
        'payment_id', id,
        'provider', provider,
        'external_payment_id', external_payment_id,
        'provider_txn_id', provider_txn_id,
        'merchant_uid', merchant_uid,
        'user_id', user_id,
        'status', status,
        'amount', trim_scale(amount)::text,
        'currency', currency,
        'amount_refunded', trim_scale(amount_refunded)::text,
        'paid_at', paid_at,
        'applied_at', subscription_applied_at,
        'created_at', created_at
    ))
FROM billing_payment AS payment
WHERE NOT EXISTS (SELECT FROM billing_outboxmessage WHERE key = payment.id);

INSERT INTO billing_outboxdelivery (message_id, target, key, seq)
SELECT id, 'read-model', key, seq FROM billing_outboxmessage WHERE type = 'PaymentImported'
ON CONFLICT (message_id, target) DO NOTHING;
"""


class Migration(migrations.Migration):
    dependencies = [("billing", "0006_grant_shortened_and_kept")]
    operations = [migrations.RunSQL(TELL, migrations.RunSQL.noop)]
