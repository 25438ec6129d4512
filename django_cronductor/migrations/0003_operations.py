from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("django_cronductor", "0002_runs_by_outcome")]

    operations = [
        migrations.AlterModelOptions(
            name="declaredjob",
            options={
                "ordering": ("key",),
                "permissions": (
                    ("run_job", "Can run jobs now"),
                    ("pause_job", "Can pause jobs"),
                    ("resume_job", "Can resume jobs"),
                    ("release_job", "Can release leases"),
                ),
                "verbose_name": "job",
                "verbose_name_plural": "jobs",
            },
        ),
        migrations.AddField(
            model_name="declaredjob",
            name="run_requested_at",
            field=models.DateTimeField(blank=True, editable=False, null=True),
        ),
        migrations.AddField(
            model_name="declaredjob",
            name="release_requested_at",
            field=models.DateTimeField(blank=True, editable=False, null=True),
        ),
        migrations.AddIndex(
            model_name="jobrun",
            index=models.Index(fields=["job_key", "outcome", "-id"], name="cronductor_runs_of_job_by_end"),
        ),
    ]
