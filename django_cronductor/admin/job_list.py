"""The admin's list of jobs: Django's own, of what is in the code, in the database and in the lock store."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timezone
from typing import Any

from django.contrib import admin
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import ChangeList
from django.core.paginator import InvalidPage, Paginator
from django.db.models import Model, QuerySet
from django.http import HttpRequest
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from django_cronductor.admin import cells, recent, words
from django_cronductor.exceptions import ConfigurationError
from django_cronductor.models import DeclaredJob, JobRun
from django_cronductor.overview import JobView, Overview, get_overview


def overview_of(request: HttpRequest) -> Overview:
    """Return all jobs, read once for a page."""
    if "cronductor_overview" not in vars(request):
        vars(request)["cronductor_overview"] = read()
    found: Overview = vars(request)["cronductor_overview"]
    return found


def read(keys: Iterable[str] | None = None) -> Overview:
    """Return the jobs of these keys, or all; a wrong setting is said on the page, too."""
    try:
        return get_overview(None if keys is None else list(keys))
    except ConfigurationError as error:
        now = datetime.now(timezone.utc)
        return Overview([], backend="", shared=True, history=False, now=now, store_error=str(error))


def unreadable() -> str | None:
    """Return why jobs cannot be found though there may be some: a setting that is wrong, a database that fails."""
    try:
        return get_overview([]).database_error
    except ConfigurationError as error:
        return str(error)


def view_of(row: DeclaredJob) -> JobView:
    """Return the job that a row of the list stands for."""
    found: JobView = vars(row)["view"]
    return found


def picture_of(row: DeclaredJob) -> SafeString | None:
    """Return the picture of the newest runs of a row of the list; None where there is no history."""
    found: SafeString | None = vars(row)["picture"]
    return found


class ViewFilter(admin.SimpleListFilter):
    """A filter of what is known of a job, which is more than the database knows."""

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Leave it to `matches`."""
        return queryset

    def matches(self, view: JobView) -> bool:
        """Tell whether a job is to be listed."""
        return self.value() is None or self.value_of(view) == self.value()

    def value_of(self, view: JobView) -> str:
        """Return what is compared."""
        raise NotImplementedError


class StateFilter(ViewFilter):
    """By what the job does."""

    title = _("state")
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Iterable[tuple[str, Any]]:
        """Return all states."""
        return tuple(cells.STATUS.items())

    def matches(self, view: JobView) -> bool:
        """Find a job that is paused also while it runs."""
        return super().matches(view) or (self.value() == "paused" and view.paused)

    def value_of(self, view: JobView) -> str:
        """Return its state."""
        return view.status


class AppFilter(ViewFilter):
    """By the app that declares the job."""

    title = _("app")
    parameter_name = "app"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Iterable[tuple[str, str]]:
        """Return the apps that have jobs."""
        return tuple((label, label) for label in sorted({app_of(view) for view in overview_of(request).jobs} - {""}))

    def value_of(self, view: JobView) -> str:
        """Return its app."""
        return app_of(view)


class OutcomeFilter(ViewFilter):
    """By how the newest run ended."""

    title = _("last outcome")
    parameter_name = "outcome"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Iterable[tuple[str, Any]]:
        """Return the outcomes of runs, and that there is none."""
        return (*(choice for choice in JobRun.Outcome.choices if choice[0] not in words.NOT_RUN), NEVER)

    def value_of(self, view: JobView) -> str:
        """Return its last outcome."""
        return NEVER[0] if view.last_run is None else view.last_run.outcome


NEVER = ("never", _("no run yet"))


def app_of(view: JobView) -> str:
    """Return the label of a job's app; empty if it is no app's."""
    return (view.job.app_label if view.job else view.row.app_label if view.row else "") or ""


class JobList(ChangeList):
    """Django's list, of jobs that need not be in the database."""

    def get_results(self, request: HttpRequest) -> None:
        """Find the jobs that were asked for, and ask the history about those that are shown."""
        jobs = overview_of(request).jobs
        found = [view for view in jobs if self._matches(view)]
        self.paginator = Paginator(found, self.list_per_page)
        self.result_count = len(found)
        self.full_result_count = len(jobs)
        self.show_full_result_count = True
        self.show_admin_actions = False
        self.can_show_all = len(found) <= self.list_max_show_all
        self.multi_page = len(found) > self.list_per_page
        self.result_list = [row_of(view) for view in self._page(found)]
        _draw(self.result_list, overview_of(request))

    def url_for_result(self, result: Model) -> str:
        """Return the address of a job's page, which is found by its key."""
        return words.url(self.model_admin.admin_site.name, "declaredjob_change", str(result))

    def _page(self, found: list[JobView]) -> list[JobView]:
        if not self.multi_page or (self.show_all and self.can_show_all):
            return found
        try:
            return list(self.paginator.page(self.page_num).object_list)
        except InvalidPage as error:
            raise IncorrectLookupParameters from error

    def _matches(self, view: JobView) -> bool:
        told = f"{view.key} {app_of(view)} {_expression(view)}".casefold()
        if not all(word in told for word in self.query.casefold().split()):
            return False
        return all(spec.matches(view) for spec in self.filter_specs if isinstance(spec, ViewFilter))


def _expression(view: JobView) -> str:
    return view.job.expression if view.job else view.row.expression if view.row else ""


def row_of(view: JobView) -> DeclaredJob:
    """Return a job as Django's list takes it: as a row, which need not be in the database."""
    row = DeclaredJob(key=view.key)
    vars(row)["view"] = view
    return row


def _draw(rows: Iterable[DeclaredJob], overview: Overview) -> None:
    """Give each row the picture of its newest runs."""
    told = overview.history and overview.database_error is None
    found = recent.recent_runs([row.key for row in rows]) if told else {}
    for number, row in enumerate(rows):
        vars(row)["picture"] = recent.picture(found.get(row.key, ()), f"runs-{number}") if told else None


def told_of(overview: Overview) -> dict[str, Any]:
    """Return what is said above the list."""
    replicas = None
    if overview.instances is not None:
        seen = sorted(overview.instances.items())
        replicas = [(name, words.ago(at, overview.now), overview.is_silent(name)) for name, at in seen]
    alive = sum(not silent for _, _, silent in replicas or ())
    return {"overview": overview, "shown_now": words.moment(overview.now), "replicas": replicas, "alive": alive}
