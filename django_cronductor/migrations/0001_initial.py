from django.db import migrations, models

import django_cronductor.fields


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="DeclaredJob",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("key", django_cronductor.fields.KeyField(max_length=200, unique=True, verbose_name="key")),
                ("app_label", models.CharField(blank=True, max_length=200, verbose_name="app")),
                ("expression", models.CharField(max_length=1000, verbose_name="schedule")),
                ("timezone", models.CharField(max_length=100, verbose_name="time zone")),
                ("fingerprint", models.CharField(editable=False, max_length=100)),
                ("since", models.BigIntegerField(editable=False)),
                ("enabled", models.BooleanField(default=True, verbose_name="enabled")),
                ("first_seen", models.DateTimeField(auto_now_add=True, verbose_name="first seen")),
                ("last_seen", models.DateTimeField(verbose_name="last seen")),
                ("paused_at", models.DateTimeField(blank=True, null=True, verbose_name="paused since")),
                ("paused_by", models.CharField(blank=True, max_length=200, verbose_name="paused by")),
                ("pause_note", models.TextField(blank=True, verbose_name="why it is paused")),
            ],
            options={
                "verbose_name": "job",
                "verbose_name_plural": "jobs",
                "ordering": ("key",),
            },
        ),
        migrations.CreateModel(
            name="JobRun",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("run_id", models.CharField(editable=False, max_length=40, unique=True)),
                ("job_key", django_cronductor.fields.KeyField(max_length=200, verbose_name="job")),
                ("slot", models.BigIntegerField(editable=False, null=True)),
                ("attempt", models.SmallIntegerField(default=0, verbose_name="attempt")),
                (
                    "outcome",
                    models.CharField(
                        choices=[
                            ("running", "running"),
                            ("succeeded", "succeeded"),
                            ("failed", "failed"),
                            ("timed out", "timed out"),
                            ("lost", "lost"),
                            ("interrupted", "interrupted"),
                            ("abandoned", "abandoned"),
                            ("enqueued", "enqueued"),
                            ("held", "held"),
                            ("missed", "missed"),
                            ("paused", "paused"),
                            ("condition", "condition not met"),
                        ],
                        default="running",
                        max_length=20,
                        verbose_name="outcome",
                    ),
                ),
                ("trigger", models.CharField(blank=True, max_length=20, verbose_name="trigger")),
                ("scheduled_at", models.DateTimeField(blank=True, null=True, verbose_name="scheduled")),
                ("started_at", models.DateTimeField(blank=True, null=True, verbose_name="started")),
                ("finished_at", models.DateTimeField(blank=True, null=True, verbose_name="finished")),
                ("lateness", models.FloatField(blank=True, null=True, verbose_name="lateness in seconds")),
                ("duration", models.FloatField(blank=True, null=True, verbose_name="duration in seconds")),
                ("count", models.PositiveIntegerField(default=1, verbose_name="occurrences")),
                ("holder", models.CharField(blank=True, max_length=300, verbose_name="lock holder")),
                ("fencing_token", models.BigIntegerField(blank=True, null=True, verbose_name="fencing token")),
                ("error_type", models.CharField(blank=True, max_length=200, verbose_name="error")),
                ("error_message", models.TextField(blank=True, verbose_name="error message")),
                ("traceback", models.TextField(blank=True, verbose_name="traceback")),
            ],
            options={
                "verbose_name": "run",
                "verbose_name_plural": "runs",
                "ordering": ("-id",),
                "indexes": [models.Index(fields=["job_key", "-id"], name="cronductor_runs_of_job")],
                "constraints": [
                    models.UniqueConstraint(fields=("job_key", "slot", "attempt"), name="cronductor_one_run_per_slot")
                ],
            },
        ),
    ]
