"""The bill of materials, in CycloneDX's form: what the wheel contains, and the packages with which it was tried."""

from __future__ import annotations

import re
import tomllib
import uuid
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.license import License
from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL

from .checksums import sha256
from .commands import ReleaseError

JSON_HEADER = "vendor/llama.cpp/vendor/nlohmann/json.hpp"
HEADERS = [
    ("vendor/llama.cpp/vendor/stb/stb_image.h", "stb_image", "nothings", "stb", "MIT"),
    ("vendor/llama.cpp/vendor/miniaudio/miniaudio.h", "miniaudio", "mackron", "miniaudio", "MIT-0"),
]
VENDORED = "pyllmcancel/page/vendor/VENDORED.toml"
PIN = "vendor/llama.cpp/PIN.toml"


def licences(expression: str) -> list[License]:
    return [LicenseFactory().make_from_string(expression)]


def compiled_in(source: Path) -> Iterator[Component]:
    """llama.cpp with ggml, and the libraries that it brings: for JSON, pictures and sounds."""
    pin = tomllib.loads((source / PIN).read_text("utf-8"))["llama_cpp"]
    commit = pin["commit"]
    purl = PackageURL("github", "ggml-org", "llama.cpp", commit)
    yield component("llama.cpp", commit, "MIT", purl)
    header = (source / JSON_HEADER).read_text("utf-8")
    numbers = re.findall(r"^#define NLOHMANN_JSON_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", header, re.MULTILINE)
    version = ".".join(numbers)
    yield component("json", version, "MIT", PackageURL("github", "nlohmann", "json", f"v{version}"))
    for path, name, owner, repository, licence in HEADERS:
        header = (source / path).read_text("utf-8")
        (version,) = re.findall(rf"^(?:/\* )?{name} - v([\d.]+)", header, re.MULTILINE)
        yield component(name, version, licence, PackageURL("github", owner, repository, version))


def of_the_page(source: Path) -> Iterator[Component]:
    """Code of others that the pages load, as npm has it."""
    for package in tomllib.loads((source / VENDORED).read_text("utf-8"))["package"]:
        namespace, _, name = package["name"].rpartition("/")
        purl = PackageURL("npm", namespace or None, name, package["version"])
        yield component(package["name"], package["version"], package["licence"], purl)


def installed_beside(packages: dict[str, str]) -> Iterator[Component]:
    """The Python packages in the environment in which the wheel was tried, and their versions."""
    for name, version in sorted(packages.items()):
        purl = PackageURL("pypi", None, re.sub(r"[-_.]+", "-", name).lower(), version)
        yield Component(name=name, version=version, purl=purl, bom_ref=str(purl))


def component(name: str, version: str, licence: str, purl: PackageURL) -> Component:
    return Component(name=name, version=version, licenses=licences(licence), purl=purl, bom_ref=str(purl))


def bill(source: Path, version: str, wheel: Path, packages: dict[str, str], when: datetime) -> str:
    """Return the bill of the wheel as JSON, which depends on nothing but the arguments."""
    inside = [*compiled_in(source), *of_the_page(source)]
    beside = list(installed_beside(packages))
    purl = PackageURL("pypi", None, "pyllmcancel", version, qualifiers={"file_name": wheel.name})
    ours = Component(
        name="pyllmcancel",
        version=version,
        type=ComponentType.APPLICATION,
        licenses=licences(tomllib.loads((source / "pyproject.toml").read_text("utf-8"))["project"]["license"]),
        purl=purl,
        bom_ref=str(purl),
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=sha256(wheel))],
        components=inside,
    )
    bom = Bom(
        metadata=BomMetaData(component=ours, timestamp=when),
        components=beside,
        serial_number=uuid.uuid5(uuid.NAMESPACE_URL, f"{purl}#{sha256(wheel)}"),
    )
    bom.register_dependency(ours, [*inside, *beside])
    text = JsonV1Dot6(bom).output_as_string(indent=2)
    if (error := JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)) is not None:
        raise ReleaseError(f"the bill of materials does not follow CycloneDX's schema: {error}")
    return f"{text}\n"
