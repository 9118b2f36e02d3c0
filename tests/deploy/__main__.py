"""All that other programs say of the recipes in ``deploy/``.

    python -m tests.deploy
    python -m tests.deploy --write      # first write the balancer's ConfigMap anew

A validator that is not installed is reported, and is not a failure. Exits with 1 if something is wrong.
"""

from __future__ import annotations

import argparse
import sys

from tests.deploy.balancer_config import written
from tests.deploy.recipes import BALANCER_CONFIG
from tests.deploy.validators import (
    Missing,
    check_balancer,
    check_containerfile,
    check_manifests,
    check_units,
    exposure,
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    if parser.parse_args().write:
        BALANCER_CONFIG.write_text(written(), "utf-8")
    status = 0
    for check in (check_units, exposure, check_manifests, check_balancer, check_containerfile):
        try:
            sys.stdout.write(f"ok: {check()}\n")
        except Missing as reason:
            sys.stdout.write(f"not checked: {reason}\n")
        except AssertionError as error:
            sys.stdout.write(f"WRONG: {check.__name__}: {error}\n")
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
