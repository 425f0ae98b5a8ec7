from django.db import migrations

CREATE_FUNCTION = """
CREATE FUNCTION tollgate_refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% is append-only: % refused', TG_TABLE_NAME, TG_OP
        USING ERRCODE = 'restrict_violation';
END $$
"""
# Personal data must be erasable; nothing else of a fact is.
CREATE_TRIGGER = """
CREATE TRIGGER append_only BEFORE DELETE ON billing_fact
FOR EACH ROW EXECUTE FUNCTION tollgate_refuse_change();
CREATE TRIGGER append_only_but_for_redaction BEFORE UPDATE ON billing_fact
FOR EACH ROW
WHEN (NEW.email IS NOT NULL OR to_jsonb(NEW) - 'email' <> to_jsonb(OLD) - 'email')
EXECUTE FUNCTION tollgate_refuse_change();
"""
DROP_TRIGGER = """
DROP TRIGGER append_only_but_for_redaction ON billing_fact;
DROP TRIGGER append_only ON billing_fact;
"""


class Migration(migrations.Migration):
    dependencies = [("billing", "0001_initial")]
    operations = [
        migrations.RunSQL(CREATE_FUNCTION, "DROP FUNCTION tollgate_refuse_change()"),
        migrations.RunSQL(CREATE_TRIGGER, DROP_TRIGGER),
    ]
