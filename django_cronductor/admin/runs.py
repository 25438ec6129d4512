"""The admin's page of runs: what the history has, to be read alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime, time, timedelta
from typing import Any, ClassVar

from django.contrib import admin
from django.contrib.admin.views.main import ChangeList
from django.core.paginator import Paginator
from django.db import Error
from django.db.models import Model, Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.dateparse import parse_date
from django.utils.functional import cached_property
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.timezone import get_current_timezone
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_cronductor.admin import words
from django_cronductor.instants import as_stored
from django_cronductor.masking import mask
from django_cronductor.models import DeclaredJob, JobRun

MOST_COUNTED = 10_000
"""Rows that are counted for the number of pages: counting a million takes longer than anybody waits."""


class BoundedPaginator(Paginator):  # type: ignore[type-arg]  # Django's own takes no argument when it runs.
    """Counts no more rows than anybody pages through."""

    @cached_property
    def count(self) -> int:
        """Return how many rows there are, up to a bound."""
        rows: Any = self.object_list
        return int(rows.order_by()[:MOST_COUNTED].count())


class RunList(ChangeList):
    """The list of runs."""

    def get_results(self, request: HttpRequest) -> None:
        """Look no second time for rows of which there are none."""
        super().get_results(request)
        if not self.result_count:
            self.result_list = self.queryset.none()


class TextFilter(admin.SimpleListFilter):
    """A filter that is typed: a list of its values would need a look at every row."""

    template = "admin/django_cronductor/text_filter.html"
    fields: tuple[tuple[str, Any, str], ...] = ()
    """Of each input: its parameter, its label, its type."""

    def __init__(self, request: HttpRequest, params: dict[str, Any], model: type[Model], model_admin: Any) -> None:
        super().__init__(request, params, model, model_admin)
        for name, _label, _type in self.fields:
            if name in params:
                self.used_parameters[name] = params.pop(name)[-1]

    def expected_parameters(self) -> list[str | None]:
        """Return the names of the inputs."""
        return [name for name, _label, _type in self.fields]

    def has_output(self) -> bool:
        """Show it always."""
        return True

    def lookups(self, request: HttpRequest, model_admin: Any) -> Iterable[tuple[str, str]]:
        """Return no values to choose from."""
        return ()

    def given(self, name: str) -> str:
        """Return what was typed."""
        # PostgreSQL refuses to look for a NUL.
        return str(self.used_parameters.get(name) or "").replace("\x00", "").strip()

    def choices(self, changelist: ChangeList) -> Iterator[Any]:
        """Yield what the template needs: the inputs, and the other parameters of the page."""
        others = changelist.get_filters_params()
        own = [name for name, _label, _type in self.fields]
        yield {
            "selected": any(map(self.given, own)),
            "clear": changelist.get_query_string(remove=own),
            "kept": [(name, value) for name, values in others.items() if name not in own for value in values],
            "inputs": [
                {"name": name, "label": label, "type": kind, "value": self.given(name)}
                for name, label, kind in self.fields
            ],
        }


class JobFilter(TextFilter):
    """By the key of a job, all of it."""

    title = _("job")
    parameter_name = "job"
    fields = (("job", _("Key"), "search"),)

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Keep the runs of that job."""
        key = self.given("job")
        return queryset.filter(job_key=key) if key else queryset


class ReplicaFilter(TextFilter):
    """By the name of a replica, or how it begins: its host."""

    title = _("replica")
    parameter_name = "replica"
    fields = (("replica", _("Name, or its beginning"), "search"),)

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Keep the runs of that replica."""
        name = self.given("replica")
        return queryset.filter(holder__startswith=name) if name else queryset


class DateFilter(TextFilter):
    """From one day to another, in the time zone of the user."""

    title = _("date")
    parameter_name = "from"
    fields = (("from", _("From"), "date"), ("until", _("Until"), "date"))

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Keep what began, or what was to begin, on these days."""
        first, last = self._midnight("from", 0), self._midnight("until", 1)
        if first is not None:
            queryset = queryset.filter(Q(started_at__gte=first) | Q(started_at=None, scheduled_at__gte=first))
        if last is not None:
            queryset = queryset.filter(Q(started_at__lt=last) | Q(started_at=None, scheduled_at__lt=last))
        return queryset

    def _midnight(self, name: str, later: int) -> datetime | None:
        try:
            day = parse_date(self.given(name))
        except ValueError:
            day = None
        if day is None or not 1 < day.year < 9999:
            return None
        return as_stored(datetime.combine(day + timedelta(days=later), time(), get_current_timezone()))


class JobRunAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # Django's own takes no argument when it runs.
    """Runs, newest first. Nothing is written here."""

    list_display = (
        "job_key",
        "shown_outcome",
        "shown_instant",
        "shown_duration",
        "shown_lateness",
        "shown_trigger",
        "shown_replica",
        "shown_error",
    )
    list_filter = ("outcome", JobFilter, ReplicaFilter, DateFilter)
    ordering = ("-id",)
    sortable_by = ()
    list_per_page = 100
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    paginator = BoundedPaginator
    actions = None
    fieldsets = (
        (None, {"fields": (("shown_outcome", "shown_count", "shown_trigger", "attempt"), "task_result_id")}),
        (
            _("Time"),
            {"fields": (("shown_occurrence", "shown_start", "shown_end"), ("shown_duration", "shown_lateness"))},
        ),
        (_("Lock"), {"fields": (("holder", "shown_token"),)}),
        (_("Error"), {"fields": ("error_type", "shown_message", "shown_traceback")}),
    )

    class Media:
        css: ClassVar = {"all": ["django_cronductor/admin.css"]}

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        """Return the list of runs."""
        return RunList

    def get_queryset(self, request: HttpRequest) -> QuerySet[JobRun]:
        """Return the runs; tracebacks are read by the page of one run alone."""
        rows: QuerySet[JobRun] = super().get_queryset(request)
        name = request.resolver_match.url_name if request.resolver_match else None
        return rows.defer("traceback") if name and name.endswith("_changelist") else rows

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Let nobody write runs."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Let nobody write runs."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Let nobody delete runs: the second barrier against a run too many is among them."""
        return False

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> list[Any]:
        """Return what is shown of a run, with the way to its job for those who may see that."""
        (name, options), *others = super().get_fieldsets(request, obj)
        job = "shown_job" if self._may_see_jobs(request) else "job_key"
        return [(name, {**options, "fields": (job, *options["fields"])}), *others]

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Show the runs; say so where their database cannot be read."""
        try:
            return super().changelist_view(request, extra_context)
        except Error as error:
            return self._unreadable(request, error)

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Show one run, with the way to run its job again."""
        may_run = self._may_see_jobs(request) and request.user.has_perm("django_cronductor.run_job")
        try:
            return super().change_view(request, object_id, form_url, {"may_run": may_run, **(extra_context or {})})
        except Error as error:
            return self._unreadable(request, error)

    def history_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Show that nothing was done to a run here."""
        try:
            return super().history_view(request, object_id, extra_context)
        except Error as error:
            return self._unreadable(request, error)

    def _may_see_jobs(self, request: HttpRequest) -> bool:
        jobs = self.admin_site._registry.get(DeclaredJob)
        return jobs is not None and jobs.has_view_permission(request)

    def _unreadable(self, request: HttpRequest, error: Error) -> HttpResponse:
        text = gettext("The runs cannot be read from the database: %s") % mask(error)
        title = self.opts.verbose_name_plural
        context = {**self.admin_site.each_context(request), "title": title, "opts": self.opts, "error": text}
        return TemplateResponse(request, "admin/django_cronductor/jobrun/unreadable.html", context, status=503)

    @admin.display(description=_("job"))
    def shown_job(self, run: JobRun) -> str:
        """Return the job, with the way to its page."""
        url = words.url(self.admin_site.name, "declaredjob_change", run.job_key)
        return format_html('<a href="{}">{}</a>', url, run.job_key)

    @admin.display(description=_("occurrence, or start"))
    def shown_instant(self, run: JobRun) -> SafeString | None:
        """Return the occurrence, or when a run that is none's began."""
        at = run.scheduled_at or run.started_at or run.finished_at
        return None if at is None else words.moment(at)

    @admin.display(description=_("scheduled"))
    def shown_occurrence(self, run: JobRun) -> SafeString | None:
        """Return the occurrence."""
        return None if run.scheduled_at is None else words.moment(run.scheduled_at)

    @admin.display(description=_("started"))
    def shown_start(self, run: JobRun) -> SafeString | None:
        """Return when it began."""
        return None if run.started_at is None else words.moment(run.started_at)

    @admin.display(description=_("finished"))
    def shown_end(self, run: JobRun) -> SafeString | None:
        """Return when it ended."""
        return None if run.finished_at is None else words.moment(run.finished_at)

    @admin.display(description=_("outcome"))
    def shown_outcome(self, run: JobRun) -> SafeString:
        """Return how it ended."""
        return format_html("{} {}", words.outcome(run.outcome), words.times(run.count))

    @admin.display(description=_("occurrences"))
    def shown_count(self, run: JobRun) -> int:
        """Return for how many occurrences it stands."""
        return run.count

    @admin.display(description=_("trigger"))
    def shown_trigger(self, run: JobRun) -> str:
        """Return why it was started."""
        return words.trigger(run.trigger)

    @admin.display(description=_("duration"))
    def shown_duration(self, run: JobRun) -> str | None:
        """Return how long it took."""
        return None if run.duration is None else words.length(run.duration)

    @admin.display(description=_("lateness"))
    def shown_lateness(self, run: JobRun) -> str | None:
        """Return how late it began."""
        return None if run.lateness is None else words.length(run.lateness)

    @admin.display(description=_("fencing token"))
    def shown_token(self, run: JobRun) -> str | None:
        """Return it as the log has it, without separators of thousands."""
        return None if run.fencing_token is None else str(run.fencing_token)

    @admin.display(description=_("replica"))
    def shown_replica(self, run: JobRun) -> str:
        """Return who ran it."""
        return words.shortened(run.holder)

    @admin.display(description=_("error"))
    def shown_error(self, run: JobRun) -> str:
        """Return the beginning of its error."""
        return words.shortened(f"{run.error_type}: {run.error_message}" if run.error_type else "")

    @admin.display(description=_("error message"))
    def shown_message(self, run: JobRun) -> SafeString | None:
        """Return what the error said, with its lines."""
        return format_html('<pre class="cronductor-text">{}</pre>', run.error_message) if run.error_message else None

    @admin.display(description=_("traceback"))
    def shown_traceback(self, run: JobRun) -> SafeString | None:
        """Return the traceback, with its lines."""
        if not run.traceback:
            return None
        return format_html('<pre class="cronductor-text" tabindex="0">{}</pre>', run.traceback)
