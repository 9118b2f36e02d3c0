"""Pictures on the real core: a server with a projector of random weights, asked in several dialects."""

from base64 import b64encode
from pathlib import Path
from typing import Any

import httpx

from tests.support.http_process import LIMIT, ServerProcess
from tests.support.media_files import data_url, gif, png
from tests.support.toy_projectors import write_pair

PICTURE = png(100, 60)


def asking(picture: bytes = PICTURE) -> dict[str, Any]:
    parts = [{"type": "text", "text": "what?"}, {"type": "image_url", "image_url": {"url": data_url(picture)}}]
    return {"messages": [{"role": "user", "content": parts}], "max_tokens": 8, "temperature": 0}


def test_a_picture_is_seen_and_is_a_part_of_the_prefix(tmp_path: Path) -> None:
    text, projector = write_pair(tmp_path, "gemma3")
    (tmp_path / "a.png").write_bytes(PICTURE)
    options = ("--model", str(text), "--mmproj", str(projector), "--media-path", str(tmp_path), "--ctx-size", "512")
    with (
        ServerProcess(*options) as server,
        httpx.Client(base_url=server.started().url, timeout=LIMIT) as client,
    ):
        props = client.get("/props").json()
        assert props["modalities"] == {"vision": True, "video": False, "audio": False}
        first, again = (client.post("/v1/chat/completions", json=asking()).json() for _ in range(2))
        assert again["choices"][0]["message"] == first["choices"][0]["message"]
        assert again["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
        named = asking()
        named["messages"][0]["content"][1]["image_url"]["url"] = "file://a.png"
        assert client.post("/v1/chat/completions", json=named).json()["choices"] == first["choices"]
        other = client.post("/v1/chat/completions", json=asking(png(100, 60, colour=(0, 250, 0)))).json()
        assert other["usage"]["prompt_tokens"] == first["usage"]["prompt_tokens"]
        assert other["choices"][0]["message"] != first["choices"][0]["message"]
        prompt = {"prompt_string": f"{props['media_marker']} is", "multimodal_data": [b64encode(PICTURE).decode()]}
        completed = client.post("/completion", json={"prompt": prompt, "n_predict": 4}).json()
        assert completed["tokens_predicted"] == 4
        # A canvas of this size would take 12 GB.
        bomb = client.post("/v1/chat/completions", json=asking(gif(65_535, 65_535)))
        assert (bomb.status_code, bomb.json()["error"]["code"]) == (413, "media_too_large")
