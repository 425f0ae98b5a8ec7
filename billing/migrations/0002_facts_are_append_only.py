from django.db import migrations

CREATE_FUNCTION = """
CREATE FUNCTION tollgate_refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% is append-only: % refused', TG_TABLE_NAME, TG_OP
        USING ERRCODE = 'restrict_violation';
END $$
"""
CREATE_TRIGGER = """
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON billing_fact
FOR EACH ROW EXECUTE FUNCTION tollgate_refuse_change()
"""


class Migration(migrations.Migration):
    dependencies = [("billing", "0001_initial")]
    operations = [
        migrations.RunSQL(CREATE_FUNCTION, "DROP FUNCTION tollgate_refuse_change()"),
        migrations.RunSQL(CREATE_TRIGGER, "DROP TRIGGER append_only ON billing_fact"),
    ]
