from django.db import migrations

CREATE_TRIGGER = """
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON webhooks_auditentry
FOR EACH ROW EXECUTE FUNCTION tollgate_refuse_change()
"""


class Migration(migrations.Migration):
    dependencies = [("webhooks", "0001_initial"), ("billing", "0002_facts_are_append_only")]
    operations = [
        migrations.RunSQL(CREATE_TRIGGER, "DROP TRIGGER append_only ON webhooks_auditentry"),
    ]
