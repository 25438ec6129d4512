"""What an operator may do to a job from its page, and what is said afterwards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest
from django.utils.functional import Promise
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_cronductor import operations
from django_cronductor.backends import create_backend
from django_cronductor.operations import Done
from django_cronductor.overview import JobView

LONGEST_NOTE = 1000


@dataclass(frozen=True)
class Action:
    """
    One thing to do to a job.

    `verb` stands on its button, `confirmation` on that of the page which asks first. `record` is what the admin's log
    says. `perform` gets what operations take, `told` says in the user's language what has happened.
    """

    name: str
    permission: str
    verb: str | Promise
    confirmation: str | Promise
    record: str
    perform: Callable[..., Done]
    told: Callable[[Done], str]
    asks: bool = False
    """Whether it always asks before it acts."""

    def is_allowed(self, request: HttpRequest) -> bool:
        """Tell whether the user has the permission for it."""
        user: Any = request.user
        return bool(user.has_perm(f"django_cronductor.{self.permission}"))

    def is_offered(self, view: JobView) -> bool:
        """Tell whether it makes sense as the job is."""
        if self.name == "run":
            return view.status not in ("gone", "disabled")
        if self.name == "pause":
            return not view.paused and view.job is not None
        if self.name == "resume":
            return view.paused
        return view.status in ("running", "dead")

    def run(self, key: str, by: str, note: str = "", once: str = "") -> Done:
        """Do it, through a store of its own. Raises CronductorError if it could not be done."""
        backend = create_backend()
        try:
            more = {"pause": {"note": note}, "run": {"once": once}}.get(self.name, {})
            return self.perform(key, backend=backend, by=by, **more)
        finally:
            backend.close()


def is_dangerous(action: Action, view: JobView) -> bool:
    """Tell whether to ask first: what is cut short, started beside something, or done in spite of a pause."""
    if action.asks:
        return True
    return action.name == "run" and (view.status in ("running", "dead") or view.paused)


def did_nothing(action: Action, done: Done) -> bool:
    """Tell whether there was nothing to do: a lease that nobody held, or what was asked before."""
    return done.repeated or (action.name == "release" and done.run is None and not done.ordered)


def _told_run(done: Done) -> str:
    if done.repeated:
        return gettext("The replicas have been asked to run %s already: the form was sent more than once.") % done.key
    if done.ordered:
        return (
            gettext("An order to run %s now was left for runcron, which looks for orders every second or two.")
            % done.key
        )
    return gettext("The replicas were asked to run %s now: the first that has a worker free does, within a minute.") % (
        done.key
    )


def _told_pause(done: Done) -> str:
    if done.ordered:
        return (
            gettext("An order to pause %s was left for runcron, which looks for orders every second or two.") % done.key
        )
    return gettext("The job %s is paused. A run in progress goes on.") % done.key


def _told_resume(done: Done) -> str:
    if done.ordered:
        return (
            gettext("An order to resume %s was left for runcron, which looks for orders every second or two.")
            % done.key
        )
    return gettext("The job %s is resumed, and runs from its next occurrence on.") % done.key


def _told_release(done: Done) -> str:
    if done.ordered:
        return (
            gettext(
                "An order to release the lease of %s was left for runcron, which looks for orders every second or two."
            )
            % done.key
        )
    if done.run is None:
        return gettext("Nobody held the lease of %s any more: nothing was released.") % done.key
    return gettext("The lease of %(job)s was taken from %(holder)s; its run counts as abandoned.") % {
        "job": done.key,
        "holder": done.run.holder,
    }


ACTIONS = (
    Action(
        "run",
        "run_job",
        _("Run now"),
        _("Yes, run it now"),
        "Run requested.",
        operations.request_run,
        _told_run,
    ),
    Action("pause", "pause_job", _("Pause…"), _("Yes, pause it"), "Paused.", operations.pause, _told_pause, True),
    Action("resume", "resume_job", _("Resume"), _("Yes, resume it"), "Resumed.", operations.resume, _told_resume),
    Action(
        "release",
        "release_job",
        _("Release the lease…"),
        _("Yes, release it"),
        "Lease released.",
        operations.release,
        _told_release,
        asks=True,
    ),
)
