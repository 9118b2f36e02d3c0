"""A package index that is a folder: an sdist like the pinned one, small, and built by itself with no network."""

import hashlib
import io
import tarfile
from pathlib import Path

NAME = "llama_cpp_python"

BACKEND = """
import pathlib

def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    folder = pathlib.Path(metadata_directory) / "llama_cpp_python-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\\nName: llama-cpp-python\\nVersion: 1.0\\n")
    return folder.name

def build_wheel(*arguments, **options):
    raise NotImplementedError
"""

FILES = {
    "PKG-INFO": "Metadata-Version: 2.1\nName: llama-cpp-python\nVersion: 1.0\n",
    "pyproject.toml": '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n',
    "backend.py": BACKEND,
    "vendor/llama.cpp/CMakeLists.txt": "# builds\n",
    "vendor/llama.cpp/include/llama.h": "// declares\n",
    "vendor/llama.cpp/docs/unwanted.md": "not of the pinned trees\n",
}


def write_sdist(folder: Path) -> str:
    """Write the sdist below `folder`; returns its sha256."""
    folder.mkdir()
    archive = folder / f"{NAME}-1.0.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        for name, text in FILES.items():
            member = tarfile.TarInfo(f"{NAME}-1.0/{name}")
            member.size = len(text.encode())
            tar.addfile(member, io.BytesIO(text.encode()))
    return hashlib.sha256(archive.read_bytes()).hexdigest()


def pin(sha256: str, prefix: str = f"{NAME}-1.0/vendor/llama.cpp/") -> str:
    """Return a PIN.toml that names that sdist."""
    return f'''
[source]
project = "llama-cpp-python"
version = "1.0"
sha256 = "{sha256}"
prefix = "{prefix}"

[trees]
build = ["CMakeLists.txt", "include/"]
tests = []
'''
