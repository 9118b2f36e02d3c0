"""tools/fill_vendor.py: loud, harmless and helpful when it cannot do its work; and llama.cpp is never committed."""

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.packaging import fake_index

ROOT = Path(__file__).resolve().parents[2]

# pip reads nothing of this machine's own: neither its configuration nor its cache.
CLEAN_PIP = {"PIP_CONFIG_FILE": os.devnull, "PIP_EXTRA_INDEX_URL": "", "PIP_FIND_LINKS": "", "PIP_NO_CACHE_DIR": "1"}


class Checkout:
    """A copy of the script and the pin, in which it may do as it likes."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.tree = root / "vendor" / "llama.cpp"
        self.pin = self.tree / "PIN.toml"
        self.stamp = self.tree / ".filled"
        self.tree.mkdir(parents=True)
        (root / "tools").mkdir()
        shutil.copy(ROOT / "tools" / "fill_vendor.py", root / "tools")
        shutil.copy(ROOT / "vendor" / "llama.cpp" / "PIN.toml", self.pin)

    def fill(self, settings: dict[str, str]) -> subprocess.CompletedProcess[str]:
        command, environment = (
            [sys.executable, self.root / "tools" / "fill_vendor.py"],
            os.environ | CLEAN_PIP | settings,
        )
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    def left(self) -> list[str]:
        vendor = self.root / "vendor"
        return sorted(path.relative_to(vendor).as_posix() for path in vendor.rglob("*") if not path.is_dir())


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path / "checkout")


@pytest.fixture
def no_network() -> dict[str, str]:
    """Settings under which pip knows no index but a closed port of this machine, and gives up at once."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return {"PIP_INDEX_URL": f"http://127.0.0.1:{port}/simple", "PIP_RETRIES": "0", "PIP_DEFAULT_TIMEOUT": "5"}


@pytest.fixture
def sha256(tmp_path: Path) -> str:
    return fake_index.write_sdist(tmp_path / "index")


@pytest.fixture
def index(tmp_path: Path, sha256: str) -> dict[str, str]:
    """Settings under which pip knows nothing but the folder with the fake sdist."""
    assert sha256
    return {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path / "index")}


def test_a_current_tree_is_left_alone(checkout: Checkout, no_network: dict[str, str]) -> None:
    shutil.copy(checkout.pin, checkout.stamp)
    (checkout.tree / "llama.h").write_text("// as it was\n")
    before = checkout.left()
    done = checkout.fill(no_network)
    assert done.returncode == 0, done.stderr
    assert "is current" in done.stderr
    assert checkout.left() == before


def test_the_pinned_trees_replace_all_that_was_there(checkout: Checkout, index: dict[str, str], sha256: str) -> None:
    checkout.pin.write_text(fake_index.pin(sha256))
    checkout.stamp.write_text("# the pin of last year\n")
    (checkout.tree / "include").mkdir()
    (checkout.tree / "include" / "of_last_year.h").write_text("")
    done = checkout.fill(index)
    assert done.returncode == 0, done.stderr
    names = (".filled", "CMakeLists.txt", "PIN.toml", "include/llama.h")
    assert checkout.left() == [f"llama.cpp/{name}" for name in names]
    assert "is current" in checkout.fill({}).stderr


def test_a_wrong_hash_stops_it_before_anything_is_unpacked(checkout: Checkout, index: dict[str, str]) -> None:
    checkout.pin.write_text(fake_index.pin("0" * 64))
    done = checkout.fill(index)
    assert done.returncode == 1
    assert "does not have the sha256 that PIN.toml pins. Nothing was unpacked." in done.stderr
    assert "the pin was edited wrongly" in done.stderr
    assert "Traceback" not in done.stderr
    assert checkout.left() == ["llama.cpp/PIN.toml"]


def test_a_prefix_that_is_not_in_the_archive_is_named(checkout: Checkout, index: dict[str, str], sha256: str) -> None:
    checkout.pin.write_text(fake_index.pin(sha256, prefix="elsewhere/"))
    done = checkout.fill(index)
    assert done.returncode == 1
    assert "is [source].prefix in PIN.toml right?" in done.stderr
    assert checkout.left() == ["llama.cpp/PIN.toml"]


def test_without_a_network_it_advises_and_keeps_an_older_tree(checkout: Checkout, no_network: dict[str, str]) -> None:
    checkout.stamp.write_text("# the pin of last year\n")
    (checkout.tree / "LICENSE").write_text("kept\n")
    before = checkout.left()
    done = checkout.fill(no_network)
    assert done.returncode == 1
    advice = done.stderr.partition("--- pip said")[0]
    assert "could not be fetched from the package index" in advice
    assert "The build needs PyPI" in advice
    assert "Traceback" not in done.stderr
    assert checkout.left() == before


def test_nothing_of_llama_cpp_but_the_pin_is_tracked() -> None:
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    command = ["git", "-C", str(ROOT), "ls-files", "vendor"]
    tracked = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert tracked == ["vendor/llama.cpp/PIN.toml"]
