"""The live page in a browser.

    python -m tests.browser --install             # Playwright into build/browser; Chromium where root and apt-get are
    python -m tests.browser --pictures GGUF       # those in docs/pictures; GGUF is SmolLM2's file
    python -m tests.browser --soak 600            # for ten minutes under load: does the tab's memory stay flat?
    python -m tests.browser --soak 600 --view try
    python -m tests.browser --soak 600 --url http://127.0.0.1:8000   # of a server that runs, and has its own load

`pytest -m "" tests/browser` has the tests. They are skipped where something is missing, and say this command.
"""

import argparse
import sys
from pathlib import Path

from tests.browser import installation, pictures, soak
from tests.browser.scenes import VIEWS


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--install", action="store_true", help="install what is missing")
    what.add_argument("--pictures", type=Path, metavar="GGUF", help="take the pictures of the documents")
    what.add_argument("--soak", type=float, metavar="SECONDS", help="sample the tab's memory for so long")
    parser.add_argument("--view", choices=VIEWS, default="engine", help="which one is soaked [engine]")
    parser.add_argument("--url", help="a server that runs; without it a server is started, and loaded")
    options = parser.parse_args()
    if (problem := installation.install() if options.install else installation.missing()) is not None:
        sys.stderr.write(f"{problem}\n")
        return 1
    if options.pictures is not None:
        return pictures.take(options.pictures)
    return soak.soak(options.soak, options.view, options.url) if options.soak is not None else 0


if __name__ == "__main__":
    raise SystemExit(main())
