"""The Django app: it registers the system checks and finds the jobs of every installed app."""

from __future__ import annotations

import os
import signal
import sys
import threading
from importlib import import_module

from django.apps import AppConfig, apps
from django.utils.translation import gettext_lazy as _

from django_cronductor.exceptions import ConfigurationError

OF_OPERATORS = (["runcron"], ["cron"], ["check"])
"""Commands, as the program's first argument, that end with the text of a wrong declaration and not with a traceback."""


class CronductorConfig(AppConfig):
    """Scheduled jobs. Nothing is started or connected to when the app is loaded."""

    name = "django_cronductor"
    label = "django_cronductor"
    verbose_name = _("Scheduled jobs")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register the checks and import each app's module of jobs."""
        from django_cronductor import checks, conf, jobs  # noqa: F401  checks registers itself

        if sys.argv[1:2] == ["runcron"]:
            heed_signals()
        # A wrong setting is the checks' to report.
        name = conf.lenient_config().autodiscover
        try:
            if name is not None:
                for app in apps.get_app_configs():
                    import_jobs(app, name)
            jobs.registry.settle()
        except ConfigurationError as error:
            if sys.argv[1:2] in OF_OPERATORS:
                sys.exit(str(error))  # It names the place of the declaration; the way to it would bury that.
            raise


def heed_signals() -> None:
    """Let SIGTERM end this process while apps are loaded, also as the first of a container, which has no defaults."""
    first = os.getpid() == 1 and threading.current_thread() is threading.main_thread()
    if first and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, lambda number, frame: os._exit(128 + number))


def import_jobs(app: AppConfig, name: str) -> None:
    """Import a module of an app that declares jobs. That it is absent is fine; any error in it is raised."""
    module = f"{app.name}.{name}"
    try:
        import_module(module)
    except SystemExit as error:
        raise ConfigurationError(
            f"{module} leaves the program when it is imported (sys.exit({error.code!r})): let it declare jobs and do "
            "nothing else, or keep what is run by hand in another module."
        ) from error
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name in _on_the_way(app, name):
            return
        if sys.version_info >= (3, 11):
            error.add_note(f"While the jobs of the app {app.label!r} were imported from {module}.")
        raise


def _on_the_way(app: AppConfig, name: str) -> list[str]:
    """Return the module that is imported, and the packages between the app and it."""
    parts = name.split(".")
    return [".".join([app.name, *parts[: length + 1]]) for length in range(len(parts))]
