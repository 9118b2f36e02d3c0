"""All that other programs say of the recipes in ``deploy/``.

    python -m tests.deploy

A validator that is not installed is reported, and is not a failure. Exits with 1 if something is wrong.
"""

import sys

from tests.deploy.validators import Missing, check_balancer, check_containerfile, check_manifests, check_units, exposure


def main() -> int:
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
