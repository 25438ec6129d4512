from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("django_cronductor", "0003_operations")]

    operations = [
        migrations.AddField(
            model_name="jobrun",
            name="task_result_id",
            field=models.CharField(blank=True, db_default="", default="", max_length=500, verbose_name="task result"),
        ),
    ]
