"""Clients that are libraries: a script of ``scripts`` uses them, beside the recipe."""

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from tests.clients.recipes import recipe
from tests.clients.session import Session
from tests.clients.steering import CALL_PROMPT, LONG_PROMPT

SCRIPTS = Path(__file__).parent / "scripts"
LIMIT = 120.0


def library(title: str, script: str) -> Callable[[Session], float]:
    """How to use one: its recipe's title, and the script."""

    def use(session: Session) -> float:
        # Node looks for packages beside the script and above, wherever it is run.
        folder = session.packages.folder if script.endswith(".mjs") else session.project
        (folder / f"recipe{Path(script).suffix}").write_text(recipe(title, session.url))
        for name in (script, "common.py"):
            shutil.copy(SCRIPTS / name, folder)
        done = subprocess.run(
            [session.packages.interpreter, folder / script, CALL_PROMPT, LONG_PROMPT],
            env=session.environment(),
            cwd=session.project,
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
        )
        left = re.search(r"^left ([\d.]+)$", done.stdout, re.MULTILINE)
        if done.returncode or left is None:
            raise RuntimeError(f"{script} failed:\n{done.stdout}{done.stderr}")
        return float(left[1])

    return use
