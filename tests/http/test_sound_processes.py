"""Sounds on the real core: a server with a projector of random weights that hears, asked by OpenAI's own client."""

import io
from base64 import b64encode
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.support.http_process import LIMIT, ServerProcess, until
from tests.support.media_files import noise_wav
from tests.support.toy_projectors import write_pair

pytestmark = pytest.mark.long


def test_a_sound_is_heard_in_chats_and_transcriptions_and_a_cancel_ends_its_encoding(tmp_path: Path) -> None:
    text, projector = write_pair(tmp_path, "qwen3a")
    options = ("--model", str(text), "--mmproj", str(projector), "--ctx-size", "4096", "--parallel", "1")
    # The same tokens, whatever of the prompt is in the cells already.
    options += ("--flash-attn", "off", "--cache-type-k", "f32", "--cache-type-v", "f32")
    sounds = [noise_wav(1, seed=seed) for seed in (1, 2)]
    with (
        ServerProcess(*options, "--spec-type", "none") as server,
        openai.OpenAI(base_url=f"{server.started().url}/v1", api_key="none", timeout=LIMIT, max_retries=0) as client,
    ):

        def transcribed(sound: bytes, **fields: Any) -> Any:
            sent = {"max_tokens": 8}
            return client.audio.transcriptions.create(
                model="any", file=("a.wav", io.BytesIO(sound)), extra_body=sent, **fields
            )

        first, other = (transcribed(sound) for sound in sounds)
        assert first.text != other.text
        assert (first.usage.input_token_details.audio_tokens, first.usage.output_tokens) == (26, 8)
        assert transcribed(sounds[0], response_format="text").strip() == first.text
        *_, done = transcribed(sounds[0], stream=True)
        assert (done.type, done.text.strip()) == ("transcript.text.done", first.text)

        def chat(sound: bytes) -> Any:
            part = {"type": "input_audio", "input_audio": {"data": b64encode(sound).decode(), "format": "wav"}}
            words = {"type": "text", "text": "Transcribe audio to text"}
            messages: Any = [{"role": "user", "content": [words, part]}]
            return client.chat.completions.create(model="any", messages=messages, max_tokens=8, temperature=0)

        assert (chat(sounds[0]).choices[0].message.content or "").strip() == first.text

        # A minute, of which a part is encoded when the client leaves.
        transcribed(noise_wav(60, seed=3), stream=True).close()
        until(lambda: client.get("/requests?status=running", cast_to=dict[str, Any]), lambda found: not found["data"])
        assert transcribed(sounds[0]).text == first.text
