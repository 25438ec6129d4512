"""Jobs and their runs in Django's admin."""

from __future__ import annotations

from django.contrib import admin

from django_cronductor.admin.jobs import JobAdmin
from django_cronductor.admin.runs import JobRunAdmin
from django_cronductor.models import DeclaredJob, JobRun

admin.site.register(DeclaredJob, JobAdmin)
admin.site.register(JobRun, JobRunAdmin)
