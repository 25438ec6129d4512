"""The environments of the contenders: made when they are first needed, from the package registry, and kept."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

DIRECTORY = Path(__file__).resolve().parent.parent / ".cache" / "benchmarks"

PACKAGES = {
    "apscheduler": ["apscheduler==3.11.*"],
    "crontask": ["django-crontask", "redis"],
    "redbeat": ["celery", "celery-redbeat", "packaging"],
    "rq": ["rq", "croniter"],
    "huey": ["huey", "redis"],
    "cronsim": ["cronsim"],
}
"""What is installed for each contender."""


class Environments:
    """Virtual environments in a directory, one per contender, of this interpreter's version."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory.absolute()
        self._used: dict[str, str] = {}
        """What is installed in each that was asked for, as `name version, ...`."""

    def python(self, name: str) -> str:
        """Return the interpreter of an environment; "ours" is the one that runs this."""
        if name == "ours":
            return sys.executable
        python = self._path(name) / "bin" / "python"
        done = self._path(name) / "installed"
        if not done.exists():
            print(f"Installing {', '.join(PACKAGES[name])} in {self._path(name)} ...", file=sys.stderr, flush=True)
            subprocess.run([sys.executable, "-m", "venv", "--clear", str(self._path(name))], check=True)
            command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            subprocess.run([*command, *PACKAGES[name]], check=True)
            done.touch()
        if name not in self._used:
            self._used[name] = self._installed(name, python)
        return str(python)

    @property
    def versions(self) -> str:
        """Return what is installed in the environments that were used."""
        return "; ".join(self._used.values())

    def _installed(self, name: str, python: Path) -> str:
        names = [package.partition("=")[0] for package in PACKAGES[name]]
        code = "import sys; from importlib.metadata import version\nfor n in sys.argv[1:]: print(n, version(n))"
        done = subprocess.run([python, "-c", code, *names], capture_output=True, text=True, check=True)
        return ", ".join(done.stdout.splitlines())

    def packages(self, name: str) -> str:
        """Return the directory that an environment's packages are in."""
        code = "import sysconfig; print(sysconfig.get_path('purelib'))"
        done = subprocess.run([self.python(name), "-c", code], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    def _path(self, name: str) -> Path:
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        return self._directory / f"{name}-py{version}"
