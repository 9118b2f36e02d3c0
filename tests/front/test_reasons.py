"""The reason why a model could not be loaded, as its process's log has it."""

import json

import pytest

from pyllmcancel.front.worker import reason_in


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("pyllmcancel: there is no file a.gguf", "there is no file a.gguf"),
        ("02:59:33.026 CRITICAL pyllmcancel.server: the model could not be loaded: no memory", "no memory"),
        ("02:59:33.026 ERROR   pyllmcancel.engine: a step failed", "a step failed"),
        (json.dumps({"level": "critical", "message": "the model could not be loaded: no memory"}), "no memory"),
        ("GGML_ASSERT(n > 0) failed", "GGML_ASSERT(n > 0) failed"),
        ('{"no": "message"}', '{"no": "message"}'),
        ("[1]", "[1]"),
        ("", ""),
    ],
)
def test_a_reason_is_told_without_the_logs_own_fields(line: str, reason: str) -> None:
    assert reason_in(line) == reason
