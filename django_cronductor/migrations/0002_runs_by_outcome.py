from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("django_cronductor", "0001_initial")]

    operations = [
        migrations.AddIndex(
            model_name="jobrun",
            index=models.Index(fields=["outcome", "-id"], name="cronductor_runs_by_outcome"),
        ),
    ]
