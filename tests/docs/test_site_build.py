"""The documentation's site is built without a warning: MkDocs warns of links and anchors that lead nowhere."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.pages import ROOT

NEEDED = ("mkdocs", "material", "mkdocstrings")


@pytest.mark.long
@pytest.mark.skipif(not all(map(find_spec, NEEDED)), reason="the extra [docs] is not installed")
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    site = tmp_path / "site"
    run = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", site],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")
    assert (site / "library" / "index.html").is_file()
