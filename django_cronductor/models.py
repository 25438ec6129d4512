"""The jobs that replicas have declared, and their runs."""

from __future__ import annotations

from typing import TypeVar

from django.db import models, router
from django.utils.translation import gettext_lazy as _

from django_cronductor.fields import KeyField

M = TypeVar("M", bound=models.Model)

SKIPPED = -1
"""The attempt of rows of occurrences that were not run."""


class DeclaredJob(models.Model):
    """
    A job as the replicas declared it last.

    `since` is the declaration's instant in the lock store, in milliseconds since the epoch. The two `requested` columns
    are orders to a runcron whose store is in its own memory: it carries them out and clears them.
    """

    key = KeyField(_("key"), max_length=200, unique=True)
    app_label = models.CharField(_("app"), max_length=200, blank=True)
    expression = models.CharField(_("schedule"), max_length=1000)
    timezone = models.CharField(_("time zone"), max_length=100)
    fingerprint = models.CharField(max_length=100, editable=False)
    since = models.BigIntegerField(editable=False)
    enabled = models.BooleanField(_("enabled"), default=True)
    first_seen = models.DateTimeField(_("first seen"), auto_now_add=True)
    last_seen = models.DateTimeField(_("last seen"))
    paused_at = models.DateTimeField(_("paused since"), null=True, blank=True)
    paused_by = models.CharField(_("paused by"), max_length=200, blank=True)
    pause_note = models.TextField(_("why it is paused"), blank=True)
    run_requested_at = models.DateTimeField(null=True, blank=True, editable=False)
    release_requested_at = models.DateTimeField(null=True, blank=True, editable=False)

    class Meta:
        verbose_name = _("job")
        verbose_name_plural = _("jobs")
        ordering = ("key",)
        permissions = (
            ("run_job", "Can run jobs now"),
            ("pause_job", "Can pause jobs"),
            ("resume_job", "Can resume jobs"),
            ("release_job", "Can release leases"),
        )

    def __str__(self) -> str:
        return self.key


class JobRun(models.Model):
    """
    A run of a job, or occurrences of it that were not run.

    `slot` is the occurrence in milliseconds since the epoch, null for a manual run: a datetime would not tell the two
    passes of a repeated hour apart where USE_TZ is off. Occurrences that were not run have the attempt -1.
    """

    class Outcome(models.TextChoices):
        """How a run ended, or why an occurrence was not run."""

        RUNNING = "running", _("running")
        SUCCEEDED = "succeeded", _("succeeded")
        FAILED = "failed", _("failed")
        TIMED_OUT = "timed out", _("timed out")
        LOST = "lost", _("lost")
        INTERRUPTED = "interrupted", _("interrupted")
        ABANDONED = "abandoned", _("abandoned")
        ENQUEUED = "enqueued", _("enqueued")
        HELD = "held", _("held")
        MISSED = "missed", _("missed")
        PAUSED = "paused", _("paused")
        CONDITION = "condition", _("condition not met")

    id = models.BigAutoField(primary_key=True)
    run_id = models.CharField(max_length=40, unique=True, editable=False)
    job_key = KeyField(_("job"), max_length=200)
    slot = models.BigIntegerField(null=True, editable=False)
    attempt = models.SmallIntegerField(_("attempt"), default=0)
    outcome = models.CharField(_("outcome"), max_length=20, choices=Outcome.choices, default=Outcome.RUNNING)
    trigger = models.CharField(_("trigger"), max_length=20, blank=True)
    scheduled_at = models.DateTimeField(_("scheduled"), null=True, blank=True)
    started_at = models.DateTimeField(_("started"), null=True, blank=True)
    finished_at = models.DateTimeField(_("finished"), null=True, blank=True)
    lateness = models.FloatField(_("lateness in seconds"), null=True, blank=True)
    duration = models.FloatField(_("duration in seconds"), null=True, blank=True)
    count = models.PositiveIntegerField(_("occurrences"), default=1)
    holder = models.CharField(_("lock holder"), max_length=300, blank=True)
    fencing_token = models.BigIntegerField(_("fencing token"), null=True, blank=True)
    # The database has the default, too: in a deploy the version before goes on writing rows without the column.
    task_result_id = models.CharField(_("task result"), max_length=500, blank=True, default="", db_default="")
    error_type = models.CharField(_("error"), max_length=200, blank=True)
    error_message = models.TextField(_("error message"), blank=True)
    traceback = models.TextField(_("traceback"), blank=True)

    class Meta:
        verbose_name = _("run")
        verbose_name_plural = _("runs")
        ordering = ("-id",)
        constraints = (
            # The second barrier: an occurrence that a store which lost its data gives away again finds its row here.
            models.UniqueConstraint(fields=("job_key", "slot", "attempt"), name="cronductor_one_run_per_slot"),
        )
        indexes = (
            models.Index(fields=("job_key", "-id"), name="cronductor_runs_of_job"),
            # Few rows are those of runs in progress, which are looked for again and again.
            models.Index(fields=("outcome", "-id"), name="cronductor_runs_by_outcome"),
            # The newest run of each job that succeeded, or that goes on, is found in one step each.
            models.Index(fields=("job_key", "outcome", "-id"), name="cronductor_runs_of_job_by_end"),
        )

    def __str__(self) -> str:
        return f"{self.job_key} {self.scheduled_at or self.trigger}"


LEFT_OUT = (JobRun.Outcome.CONDITION, JobRun.Outcome.MISSED)
"""The outcomes of runs that were won and not made."""


def for_writing(model: type[M]) -> models.QuerySet[M]:
    """Return the rows of a model as the database that is written to has them: a reader may lag behind."""
    rows: models.QuerySet[M] = model._default_manager.using(router.db_for_write(model))
    return rows
