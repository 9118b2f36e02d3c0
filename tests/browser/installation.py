"""Playwright, axe-core and Chromium: found, or installed where git does not look.

They are large, so the tests' packages have none of them: ``python -m tests.browser --install``.
"""

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from tests.clients.packages import Environment

FOLDER = Path(__file__).parents[2] / "build" / "browser"
PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"
COMMAND = "python -m tests.browser --install"
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


class Packages(Environment):
    """An environment whose packages this very Python imports, so each version of Python has one."""

    @property
    def folder(self) -> Path:
        return FOLDER / PYTHON / Environment.folder.fget(self).name  # type: ignore[attr-defined, no-any-return]

    @property
    def site_packages(self) -> Path:
        return self.folder / "lib" / PYTHON / "site-packages"


# The second one is axe-core 4.12.1, as a file.
PACKAGES = Packages("pip", ("playwright==1.65.2", "axe-playwright-python==0.1.8"))


def chromium() -> str | None:
    """Path of the browser: what ``CHROMIUM`` says, or one of the usual names."""
    return os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


def missing() -> str | None:
    """Why nothing can be tested in a browser, and what helps; None where all is here."""
    if chromium() is None:
        return f"no Chromium, the live page is NOT TESTED: {COMMAND}, as root; or set CHROMIUM to its path"
    if not PACKAGES.is_here:
        return f"no Playwright, the live page is NOT TESTED: {COMMAND}"
    return None


def make_importable() -> None:
    """Have `playwright` found; after everything else, so that what it shares with the tests is the tests'."""
    if find_spec("playwright") is None:
        sys.path.append(str(PACKAGES.site_packages))


def axe_source() -> str:
    return (PACKAGES.site_packages / "axe_playwright_python" / "axe.min.js").read_text()


def install() -> str | None:
    """Install what is missing; what is missing then.

    Chromium only from a Debian or Ubuntu's packages, and as root: elsewhere that is for the machine's owner to decide.
    """
    if chromium() is None and os.geteuid() == 0 and shutil.which("apt-get"):
        get = ("apt-get", "install", "-y", "-qq", "--no-install-recommends", "chromium")
        if subprocess.run(get, stdout=sys.stderr, check=False).returncode != 0:  # the lists may be old, or not there
            subprocess.run(("apt-get", "update", "-qq"), stdout=sys.stderr, check=False)
            subprocess.run(get, stdout=sys.stderr, check=False)
    try:
        PACKAGES.fetch()
    except (subprocess.CalledProcessError, FileNotFoundError) as error:
        return str(error)
    return missing()
