"""Keys of several owners, and real processes of models, which do not depend on the file of the keys."""

import os
import shutil
import signal
from pathlib import Path

import pytest

from tests.clients.model import PACKAGED_MODEL
from tests.support.http_process import ServerProcess, until

pytestmark = pytest.mark.long

ANN, BOB, ADMIN = ({"X-Api-Key": key} for key in ("key-a", "key-b", "key-admin"))


def test_models_load_and_restart_while_the_file_of_keys_is_bad(tmp_path: Path) -> None:
    for name in ("one", "other"):
        shutil.copy(PACKAGED_MODEL, tmp_path / f"{name}.gguf")
    (keys := tmp_path / "keys").write_text("ann:key-a\nbob:key-b\n")
    models = ("-m", str(tmp_path / "one.gguf"), "-m", str(tmp_path / "other.gguf"))
    with ServerProcess(*models, "--api-key-file", str(keys), "--admin-api-key", "key-admin") as server:
        http = server.started().http

        def complete(model: str, who: dict[str, str], request_id: str) -> int:
            body = {"model": model, "prompt": "x", "max_tokens": 2}
            return http.post("/v1/completions", json=body, headers=who | {"X-Request-Id": request_id}).status_code

        assert complete("one", ANN, "first") == 200
        keys.write_text("a b c:\n")
        server.signal(signal.SIGHUP)
        server.wait_for_log("the former ones stay valid")
        assert complete("other", ANN, "anns") == 200
        keys.unlink()
        for pid in server.children():
            os.kill(pid, signal.SIGHUP)  # as whoever sends it to all processes
        http.post("/models/unload", json={"model": "one"}, headers=ADMIN)
        until(
            lambda: http.get("/v1/models/one", headers=ADMIN).json(), lambda one: one["status"]["value"] == "unloaded"
        )
        assert complete("one", BOB, "bobs") == 200
        for who, names in ((ANN, {"first", "anns"}), (BOB, {"bobs"}), (ADMIN, {"first", "anns", "bobs"})):
            assert {one["id"] for one in http.get("/v1/requests", headers=who).json()["data"]} == names
            assert http.get("/metrics", headers=who).status_code == (200 if who is ADMIN else 403)
        assert http.get("/v1/requests").status_code == 401
        assert {"bearer": []} in http.get("/openapi.json").json()["security"], "the page is a process's"
