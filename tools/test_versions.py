"""Run the HTTP tests with the lowest and with the newest web stack that the package may be installed with.

``python tools/test_versions.py`` makes an environment in ``build`` for each: ``lowest`` has the lower bounds of
``pyproject.toml`` for the packages of `STACK`, ``newest`` has the newest versions within its bounds. All else is lent
by the environment that runs this, the installed package included: nothing is compiled. ``python tools/test_versions.py
--only lowest tests/http/test_chat.py`` runs other tests, or only one of the two.

Needs an environment that has the tests' requirements, and a package index. Ends with the closing line and the exit
status of the first run that failed, or of the last.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import sysconfig
import tomllib
import venv
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
STACK = ("fastapi", "starlette", "uvicorn", "h11")
TESTS = ("tests/http",)
WHICH = ("lowest", "newest")
WHAT_IS_FOUND = f"""
from importlib.metadata import version
import pyllmcancel
print(*(f"{{name}} {{version(name)}}" for name in {STACK}), "for", pyllmcancel.__file__)
"""


def bounds() -> dict[str, Requirement]:
    """Return the requirements of ``pyproject.toml`` for the packages of the stack."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found = map(Requirement, project["dependencies"])
    return {one.name: one for one in found if one.name in STACK}


def wanted(which: str) -> list[str]:
    """Return the requirements for pip."""
    if which == "newest":
        return [str(one) for one in bounds().values()]
    lowest = {
        name: [one.version for one in bound.specifier if one.operator == ">="] for name, bound in bounds().items()
    }
    return [f"{name}=={version}" for name, (version,) in lowest.items()]


def environment(which: str) -> Path:
    """Make the environment; returns its Python."""
    folder = ROOT / "build" / f"venv-{which}"
    venv.create(folder, with_pip=False, clear=True)
    python = folder / "bin" / "python"
    own = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
    pip = (sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps")
    subprocess.run([*pip, *wanted(which)], check=True)
    # Behind its own packages. With the .pth files in it, unlike a path alone: the package may be an editable install.
    lent = [path for path in sys.path if Path(path).name in {"site-packages", "dist-packages"}]
    (own / "lent.pth").write_text("".join(f"import site; site.addsitedir({path!r})\n" for path in lent))
    return python


def run_tests(python: Path, tests: list[str]) -> int:
    variables = os.environ | {"PYTHONSAFEPATH": "1"}
    return subprocess.run([python, "-m", "pytest", *tests], env=variables, cwd=ROOT, check=False).returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=WHICH, help="the other one is left out")
    parser.add_argument("tests", nargs="*", default=TESTS, help="for pytest (default: TESTS in this file)")
    arguments = parser.parse_args()
    for which in [arguments.only] if arguments.only else WHICH:
        python = environment(which)
        found = subprocess.run(
            [python, "-P", "-c", WHAT_IS_FOUND], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
        )
        sys.stdout.write(f"{which}: {found.stdout}")
        sys.stdout.flush()
        if status := run_tests(python, list(arguments.tests)):
            return status
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
