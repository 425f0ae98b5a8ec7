from django.db import migrations

# Every payment's own name is one of its aliases; every grant knows how long it was at first.
NAME_PAYMENTS = """
INSERT INTO billing_paymentalias (system, external_id, payment_id)
SELECT provider, external_payment_id, id FROM billing_payment
ON CONFLICT (system, external_id) DO NOTHING
"""
MEASURE_GRANTS = "UPDATE billing_grant SET length = ends_at - starts_at WHERE length IS NULL"
CREATE_TRIGGER = """
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON billing_walletentry
FOR EACH ROW EXECUTE FUNCTION tollgate_refuse_change()
"""
DROP_TRIGGER = "DROP TRIGGER append_only ON billing_walletentry"


class Migration(migrations.Migration):
    dependencies = [("billing", "0003_orders_wallets_outbox")]
    operations = [
        migrations.RunSQL(NAME_PAYMENTS, migrations.RunSQL.noop),
        migrations.RunSQL(MEASURE_GRANTS, migrations.RunSQL.noop),
        migrations.RunSQL(CREATE_TRIGGER, DROP_TRIGGER),
    ]
