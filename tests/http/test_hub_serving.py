"""``pyllmcancel serve -hf``: a server whose model is on its way, that is ended meanwhile, and that has no hub."""

import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from gguf import GGUFReader, GGUFValueType, GGUFWriter

from pyllmcancel.hub.known import KnownModel
from tests.support.http_process import ServerProcess, until
from tests.support.hub import LIMIT, SILENT_LIMIT, StandIn, digest_of
from tests.support.package_index import Index, known
from tests.support.small_model import WHEEL
from tests.support.tiny_models import write_tiny_llama

NAME = "user/Tiny"
FILE = "tiny-Q4_K_M.gguf"
SERVE = "import sys; from pyllmcancel.cli import main; sys.exit(main())"
CHUNK = 16_384  # bytes that are written at once
AT_ONCE = f"from huggingface_hub import constants; constants.DOWNLOAD_CHUNK_SIZE = {CHUNK}\n{SERVE}"


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return write_tiny_llama(tmp_path_factory.mktemp("hub") / "tiny.gguf").read_bytes()


@pytest.fixture
def hub(content: bytes) -> Iterator[StandIn]:
    with StandIn() as stand_in:
        stand_in.add(NAME, {FILE: content})
        yield stand_in


class Serving:
    """Starts servers with one cache."""

    def __init__(self, folder: Path, hub: StandIn) -> None:
        self.environment = {"HF_HOME": str(folder), "HF_ENDPOINT": hub.url, "HF_TOKEN": "", "HF_HUB_DISABLE_XET": ""}
        # A server's imports may last longer than the hub's silence is borne by default, 10 s.
        self.environment |= dict.fromkeys(("HF_HUB_DOWNLOAD_TIMEOUT", "HF_HUB_ETAG_TIMEOUT"), str(SILENT_LIMIT))
        self.environment |= {"XDG_CACHE_HOME": str(folder), "PIP_INDEX_URL": hub.url}
        self.cache = folder / "hub"

    def __call__(self, *options: str, name: str | None = NAME, program: str = AT_ONCE) -> ServerProcess:
        if name is not None:
            options = ("-hf", name, "--ctx-size", "256", *options)
        return ServerProcess(*options, environment=self.environment, program=program)


@pytest.fixture
def serving(tmp_path: Path, hub: StandIn) -> Serving:
    return Serving(tmp_path, hub)


def url_of(server: ServerProcess) -> str:
    return server.wait_for_log(r"running on (http://127\.0\.0\.1:\d+)")[1]


def test_while_the_model_comes_health_says_so_then_it_serves(hub: StandIn, serving: Serving, content: bytes) -> None:
    hub.faults.append(hub.silent(len(content) // 2 // CHUNK * CHUNK))
    with serving() as server, httpx.Client(base_url=url_of(server), timeout=LIMIT) as http:
        assert hub.reached.wait(LIMIT)
        seen = until(lambda: http.get("/health"), lambda answer: answer.json()["progress"] > 0.4)
        assert seen.status_code == 503
        facts = seen.json()
        assert (facts["status"], facts["stage"], facts["error"]) == ("loading", "downloading", None)
        refused = http.post("/v1/completions", json={"prompt": "x"})
        assert refused.status_code == 503
        assert "the model is being downloaded (" in refused.json()["error"]["message"]
        hub.released.set()
        server.started()
        (model,) = http.get("/v1/models").json()["data"]
        assert model["id"] == NAME
        assert http.post("/v1/completions", json={"prompt": "x", "max_tokens": 2}).status_code == 200
    assert f"downloading {FILE} of {NAME}" in server.log
    assert "Traceback" not in server.log


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_server_that_is_ended_meanwhile_goes_on_at_the_next_start(
    hub: StandIn, serving: Serving, content: bytes, number: signal.Signals
) -> None:
    half = len(content) // 2 // CHUNK * CHUNK
    hub.faults.append(hub.silent(half))
    with serving() as server:
        url_of(server)
        assert hub.reached.wait(LIMIT)
        blob = serving.cache / "models--user--Tiny" / "blobs" / f"{digest_of(content)}.incomplete"
        until(lambda: blob.stat().st_size, lambda size: size == half)
        server.signal(number)
        assert server.wait() == (128 + number if number is signal.SIGINT else -number), server.log
    assert "Traceback" not in server.log
    with serving() as server:
        server.started()
        server.wait_for_log(f"resuming {FILE}")
    assert hub.contents_asked == [None, f"bytes={half}-"]


@pytest.mark.long
def test_a_divided_model_loads_from_its_first(hub: StandIn, serving: Serving, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "whole.gguf").write_bytes(content)
    hub.add(NAME, divided(tmp_path / "whole.gguf", tmp_path / "tiny-Q8_0.gguf"))
    with serving("--alias", "mine", name=f"{NAME}:q8_0") as server:
        server.started()
        assert server.http.get("/v1/models").json()["data"][0]["id"] == "mine"
    assert "and 1 more parts of user/Tiny:q8_0" in server.log


def divided(whole: Path, name: Path) -> dict[str, bytes]:
    """A model's file in two parts, as llama-gguf-split makes them."""
    reader = GGUFReader(whole)
    writer = GGUFWriter(name, "llama", split_max_tensors=len(reader.tensors) // 2 + 1)
    for key, field in reader.fields.items():
        if not key.startswith("GGUF.") and key != "general.architecture":
            kind, *items = field.types
            writer.add_key_value(key, field.contents(), kind, items[0] if kind is GGUFValueType.ARRAY else None)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return {path.name: path.read_bytes() for path in sorted(name.parent.glob(f"{name.stem}-*.gguf"))}


@pytest.mark.long
def test_what_does_not_come_ends_the_server(serving: Serving) -> None:
    with serving("--hf-file", "other.gguf") as server:
        assert server.wait() == 1
    assert "user/Tiny has no file other.gguf" in server.log
    assert "Traceback" not in server.log


@pytest.mark.long
def test_a_command_line_of_llama_servers_starts_this_server(hub: StandIn, serving: Serving, content: bytes) -> None:
    hub.add("ggml-org/Qwen2.5-Coder-1.5B-Q8_0-GGUF", {"qwen2.5-coder-1.5b-q8_0.gguf": content})
    given = "--fim-qwen-1.5b-default --port 0 -c 256 -np 2 -cb -ngl 99 -fa on -b 512 -ub 128 --cache-reuse 256"
    given += " --no-webui --poll 50 --prio 2 --no-warmup -lv 3 --mlock"
    with serving(*given.split(), name=None) as server:
        server.started()
        assert server.http.get("/").status_code == 404
        infill = server.http.post("/infill", json={"input_prefix": "a", "input_suffix": "b", "n_predict": 2})
        assert infill.status_code == 200
        (model,) = server.http.get("/v1/models").json()["data"]
        assert model["id"] == "ggml-org/Qwen2.5-Coder-1.5B-Q8_0-GGUF"
    for option in ("--cache-reuse", "--poll", "--prio", "--no-warmup"):
        server.wait_for_log(f"{option} is ignored: ")


def by_name(model: KnownModel) -> str:
    """Return the program of a server that knows a model as ``small``."""
    return f"from pyllmcancel.hub.known import *; KNOWN['small'] = {model!r}\n{AT_ONCE}"


@pytest.fixture
def index(hub: StandIn, serving: Serving) -> Iterator[Index]:
    """An index that the servers ask."""
    made = Index(hub)
    serving.environment["PIP_INDEX_URL"] = made.url
    yield made
    made.close()


@pytest.mark.long
def test_a_model_is_served_by_its_name_and_offline_afterwards(index: Index, serving: Serving, content: bytes) -> None:
    small = by_name(known(content, index.add(WHEEL, "small/small.gguf", content)))
    options = ("--model", "small", "--ctx-size", "256")
    with serving(*options, name=None, program=small) as server:
        server.started()
        (model,) = server.http.get("/v1/models").json()["data"]
        assert model["id"] == "small"
        server.wait_for_log(r"downloading small, Small 1B, for tests \(MIT\)")
    index.close()
    with serving(*options, "--offline", name=None, program=small) as server:
        server.started()


@pytest.mark.long
def test_without_the_library_it_says_what_to_install(hub: StandIn, serving: Serving) -> None:
    missing = "import sys; sys.modules['huggingface_hub'] = None\n"
    with serving(program=missing + SERVE) as server:
        assert server.wait() == 2
    assert "pip install 'pyllmcancel[hub]'" in server.log
    with serving() as server:
        server.started()
    with serving("--offline", program=missing + SERVE) as server:
        server.started()


@pytest.mark.long
def test_the_hub_is_asked_for_nothing_else(hub: StandIn, serving: Serving) -> None:
    """No telemetry, and no transfer by another way than the one that is tested."""
    tell = "import atexit, sys; atexit.register(lambda: sys.stderr.write('xet: %s' % ('hf_xet' in sys.modules)))\n"
    with serving(program=tell + SERVE) as server:
        server.started()
        server.signal(signal.SIGINT)
        server.wait()
    assert "xet: False" in server.log
    assert "/resolve/" not in server.log, "addresses of files are signed"
    listing, file, _, of_projector = [one.path.partition("?")[0].partition("/resolve/")[0] for one in hub.asked]
    assert (listing, file, of_projector) == (f"/api/models/{NAME}", f"/{NAME}", f"/api/models/{NAME}")
