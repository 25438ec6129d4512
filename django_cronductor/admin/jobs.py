"""The admin's pages of jobs, and what operators do there."""

from __future__ import annotations

from typing import Any, ClassVar

from django.contrib import admin, messages
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.admin.utils import unquote
from django.contrib.admin.views.main import ChangeList
from django.contrib.contenttypes.models import ContentType
from django.core.exceptions import PermissionDenied
from django.db import Error, router, transaction
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path
from django.utils.crypto import get_random_string
from django.utils.safestring import SafeString
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_cronductor.admin import cells, job_page, words
from django_cronductor.admin.actions import ACTIONS, LONGEST_NOTE, Action, did_nothing, is_dangerous
from django_cronductor.admin.job_list import (
    AppFilter,
    JobList,
    OutcomeFilter,
    StateFilter,
    overview_of,
    picture_of,
    read,
    row_of,
    told_of,
    unreadable,
    view_of,
)
from django_cronductor.exceptions import BackendError, CronductorError
from django_cronductor.keys import LONGEST_KEY
from django_cronductor.masking import mask, storable
from django_cronductor.models import DeclaredJob, JobRun
from django_cronductor.overview import JobView, Overview


class JobAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # Django's own takes no argument when it runs.
    """Jobs. They are declared in the code: here they are looked at, and run, paused, resumed and released."""

    list_display = (
        "shown_key",
        "shown_state",
        "shown_holder",
        "shown_last_run",
        "shown_schedule",
    )
    list_filter = (StateFilter, AppFilter, OutcomeFilter)
    search_fields = ("key",)
    search_help_text = _("Words of the key, the app or the schedule.")
    list_per_page = 100
    list_max_show_all = 1000
    sortable_by = ()
    show_facets = admin.ShowFacets.NEVER
    actions = None

    class Media:
        css: ClassVar = {"all": ["django_cronductor/admin.css"]}

    def get_urls(self) -> list[URLPattern]:
        """Add what can be done to a job."""
        found = [
            path(
                f"<path:object_id>/{action.name}/",
                self.admin_site.admin_view(self._view_of(action)),
                name=f"django_cronductor_declaredjob_{action.name}",
            )
            for action in ACTIONS
        ]
        return [*found, *super().get_urls()]

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Let nobody add a job: the code declares them."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Let nobody change a job: the code declares them."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Let nobody delete a job: the code declares them."""
        return False

    # The list.

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        """Return the list of all jobs."""
        return JobList

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        """Show all jobs, and what they depend on."""
        told = told_of(overview_of(request)) if self.has_view_permission(request) else {}
        return super().changelist_view(request, {"title": gettext("Scheduled jobs"), **told, **(extra_context or {})})

    @admin.display(description=_("job"))
    def shown_key(self, row: DeclaredJob) -> str:
        """Return the job's key."""
        return row.key

    @admin.display(description=_("schedule, next run"))
    def shown_schedule(self, row: DeclaredJob) -> SafeString:
        """Return when it is due, and when next."""
        view = view_of(row)
        upcoming = cells.next_run(view) if view.next_run else ""
        return cells.labelled(_("schedule, next run"), cells.lines(cells.schedule(view), upcoming))

    @admin.display(description=_("state"))
    def shown_state(self, row: DeclaredJob) -> SafeString:
        """Return what it does."""
        return cells.labelled(_("state"), cells.state(view_of(row)))

    @admin.display(description=_("last lock holder"))
    def shown_holder(self, row: DeclaredJob) -> SafeString:
        """Return who holds its lease, or held it last."""
        return cells.labelled(_("last lock holder"), cells.lock_holder(view_of(row)))

    @admin.display(description=_("last outcome and runs"))
    def shown_last_run(self, row: DeclaredJob) -> SafeString:
        """Return how its newest run ended, and the picture of those before it."""
        shown = cells.lines(cells.last_run(view_of(row)), picture_of(row))
        return cells.labelled(_("last outcome and runs"), shown)

    # A job.

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> DeclaredJob | None:
        """Return the job of that key, also one that is in the code alone."""
        found = self._find(object_id)
        return None if found is None else row_of(found[0])

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Show a job."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        found = self._find(unquote(object_id))
        if found is None:
            return self._unknown(request, unquote(object_id))
        view, overview = found
        context = self._context(request, view, overview)
        context |= job_page.context(view, overview)
        if self._may_see_runs(request):
            context |= job_page.runs(view, overview, request.GET.get("outcome", ""), self._url)
        return self._page(request, "change_form", context | (extra_context or {}))

    def history_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Show what was done to a job here."""
        named = job_page.Named(unquote(object_id))
        return super().history_view(request, object_id, {"object": named, **(extra_context or {})})

    def _find(self, key: str) -> tuple[JobView, Overview] | None:
        overview = read([key] if key.isprintable() else [])
        return (overview.jobs[0], overview) if overview.jobs else None

    def _may_see_runs(self, request: HttpRequest) -> bool:
        runs = self.admin_site._registry.get(JobRun)
        return runs is not None and runs.has_view_permission(request)

    def _unknown(self, request: HttpRequest, key: str) -> HttpResponse:
        shown = words.shortened(key, LONGEST_KEY)
        text = gettext("There is no job %s: it is neither declared in this code nor in the database.") % shown
        if error := unreadable():
            text = gettext("The job %(job)s cannot be shown: %(reason)s") % {"job": shown, "reason": error}
        self.message_user(request, text, messages.WARNING)
        return HttpResponseRedirect(self._url("declaredjob_changelist"))

    def _context(self, request: HttpRequest, view: JobView, overview: Overview) -> dict[str, Any]:
        allowed = [action for action in ACTIONS if action.is_allowed(request) and action.is_offered(view)]
        return {
            **self.admin_site.each_context(request),
            "title": view.key,
            "subtitle": None,
            "opts": self.opts,
            "original": job_page.Named(view.key),
            "has_view_permission": True,
            "change": True,
            "is_popup": False,
            "media": self.media,
            "view": view,
            "overview": overview,
            "once": get_random_string(22),
            "actions": [
                {
                    "action": action,
                    "url": self._url(f"declaredjob_{action.name}", view.key),
                    "asks": is_dangerous(action, view),
                }
                for action in allowed
            ],
        }

    def _url(self, name: str, *arguments: str | int) -> str:
        return words.url(self.admin_site.name, name, *arguments)

    def _page(self, request: HttpRequest, name: str, context: dict[str, Any]) -> HttpResponse:
        vars(request)["current_app"] = self.admin_site.name
        return TemplateResponse(request, f"admin/django_cronductor/declaredjob/{name}.html", context)

    # What is done to it.

    def _view_of(self, action: Action) -> Any:
        def act(request: HttpRequest, object_id: str) -> HttpResponse:
            return self._act(request, unquote(object_id), action)

        return act

    def _act(self, request: HttpRequest, key: str, action: Action) -> HttpResponse:
        """Ask, or do it and say what has happened."""
        if not (self.has_view_permission(request) and action.is_allowed(request)):
            raise PermissionDenied
        if request.method not in ("GET", "HEAD", "POST"):
            return HttpResponseNotAllowed(["GET", "HEAD", "POST"])
        found = self._find(key)
        if found is None:
            return self._unknown(request, key)
        view, overview = found
        asks = is_dangerous(action, view) and not _is_confirmed(request, view)
        if request.method != "POST" or asks or _is_paused_by_another(action, view):
            return self._ask(request, action, view, overview)
        if action.name == "resume" and view.live and not view.paused:
            text = gettext("The job %s was not paused: nothing was done.") % key
            self.message_user(request, text, messages.INFO)
        else:
            self._do(request, action, key)
        return HttpResponseRedirect(self._url("declaredjob_change", key))

    def _ask(self, request: HttpRequest, action: Action, view: JobView, overview: Overview) -> HttpResponse:
        context = self._context(request, view, overview) | {
            "action": action,
            "action_url": self._url(f"declaredjob_{action.name}", view.key),
            "longest_note": LONGEST_NOTE,
            "note": request.POST.get("note", ""),
            "token": _token(view),
            "changed": "token" in request.POST and not _is_confirmed(request, view),
            "pointless": not action.is_offered(view),
            "holder": cells.lock_holder(view),
        }
        return self._page(request, "action", context)

    def _do(self, request: HttpRequest, action: Action, key: str) -> None:
        user: Any = request.user
        # Browsers end lines in two characters, and count them as one.
        note = storable(request.POST.get("note", "").replace("\r\n", "\n").strip(), LONGEST_NOTE)
        try:
            done = action.run(key, user.get_username(), note, storable(request.POST.get("once", ""), 40))
        except CronductorError as error:
            text = gettext("Nothing was done to %(job)s: %(reason)s")
            if isinstance(error, BackendError) and error.unanswered:
                text = gettext(
                    "Whether it was done to %(job)s is not known, look again when the store answers: %(reason)s"
                )
            self.message_user(request, text % {"job": key, "reason": error}, messages.ERROR)
            return
        if did_nothing(action, done):
            self.message_user(request, action.told(done), messages.INFO)
            return
        self.message_user(request, action.told(done), messages.SUCCESS)
        unrecorded = done.unrecorded
        try:
            self._log(request, key, f"{action.record} {note}".strip())
        except Error as error:  # It is done all the same, and that is to be said.
            unrecorded = unrecorded or mask(error)
        if unrecorded:
            text = gettext("The lock store has it, but the database does not: %s") % unrecorded
            self.message_user(request, text, messages.WARNING)

    def _log(self, request: HttpRequest, key: str, text: str) -> None:
        with transaction.atomic(using=router.db_for_write(LogEntry)):
            LogEntry.objects.create(
                user_id=request.user.pk,
                content_type_id=ContentType.objects.get_for_model(DeclaredJob).pk,
                object_id=key,
                object_repr=key,
                action_flag=CHANGE,
                change_message=text,
            )


def _token(view: JobView) -> str:
    """Return which lease somebody sees: if it is another when they answer, they are asked again."""
    holder = view.holder
    return "" if holder is None or holder.ended is not None else f"{holder.instance} {holder.fencing_token}"


def _is_paused_by_another(action: Action, view: JobView) -> bool:
    """Tell whether a pause would take the place of one whose note somebody left for others."""
    return action.name == "pause" and view.paused and view.row is not None and view.row.paused_at is not None


def _is_confirmed(request: HttpRequest, view: JobView) -> bool:
    return request.POST.get("token") == _token(view)
