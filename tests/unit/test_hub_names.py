"""Which file of a repository a name means."""

import pytest

from pyllmcancel.errors import HubError, UsageError
from pyllmcancel.hub.names import ModelName, projector_of, quant_of, tag_of

FILES = (
    "README.md",
    "imatrix.gguf",
    "m-BF16.gguf",
    "m-F16.gguf",
    "m-Q2_K.gguf",
    "m-Q4_K_M.gguf",
    "m-Q8_0.gguf",
    "mmproj-m-Q4_K_M.gguf",
)
PARTS = tuple(f"Q4_K_M/m-Q4_K_M-0000{i}-of-00003.gguf" for i in (1, 2, 3))


def chosen(text: str, files: tuple[str, ...], file: str | None = None) -> tuple[str, ...]:
    return ModelName.parse(text, file).choose(files)


@pytest.mark.parametrize(
    ("text", "files", "found"),
    [
        ("u/m", FILES, "m-Q4_K_M.gguf"),
        ("u/m", tuple(name for name in FILES if "Q4" not in name), "m-Q8_0.gguf"),
        ("u/m", FILES[:5], "m-BF16.gguf"),
        ("u/m:q8_0", FILES, "m-Q8_0.gguf"),
        ("u/m:Q2_K", FILES, "m-Q2_K.gguf"),
        ("u/m:f16", FILES, "m-F16.gguf"),
        ("u/m:bf16", FILES, "m-BF16.gguf"),
        ("u/m:Q4_K_M", ("m-UD-IQ1.gguf", "m.q4_k_m.gguf"), "m.q4_k_m.gguf"),
        ("u/m:Q4_NL", ("m-IQ4_NL.gguf",), "m-IQ4_NL.gguf"),
        ("u/m", ("mtp-m-Q4_K_M.gguf", "deep/m-Q8_0.gguf"), "deep/m-Q8_0.gguf"),
    ],
)
def test_the_quantization_chooses_the_file(text: str, files: tuple[str, ...], found: str) -> None:
    assert chosen(text, files) == (found,)


def test_a_divided_model_is_all_of_its_parts_in_their_order() -> None:
    files = ("m-F16.gguf", *reversed(PARTS))
    assert chosen("u/m", files) == PARTS
    assert chosen("u/m", files, PARTS[0]) == PARTS
    with pytest.raises(HubError, match=r"one of 3 parts, of which .*2-of-00003.* are missing"):
        chosen("u/m:q4_k_m", (PARTS[0], PARTS[2]))


def test_a_file_by_its_name_is_that_file() -> None:
    assert chosen("u/m", FILES, "mmproj-m-Q4_K_M.gguf") == ("mmproj-m-Q4_K_M.gguf",)
    with pytest.raises(HubError, match=r"no file other.gguf; it has imatrix.gguf, m-BF16"):
        chosen("u/m", FILES, "other.gguf")


def test_what_is_not_there_is_told_with_what_is() -> None:
    with pytest.raises(HubError, match="u/m has no Q5_K_M; it has BF16, F16, Q2_K, Q4_K_M, Q8_0"):
        chosen("u/m:Q5_K_M", FILES)
    with pytest.raises(HubError, match=r"no GGUF file of a model; it has README.md, model.safetensors"):
        chosen("u/m", ("README.md", "model.safetensors"))
    with pytest.raises(HubError, match="it has no such file"):
        chosen("u/m", ())
    with pytest.raises(HubError, match=r"Q1, .* and 8 more"):
        chosen("u/m:F16", tuple(f"m-Q{i}.gguf" for i in range(1, 21)))


@pytest.mark.parametrize(
    "text", ["", "m", "u/m/x", "/m", "u/", "../m", "u/..", "u/m:", "u/m:a b", "u/m:a:b", "https://huggingface.co/u/m"]
)
def test_what_is_no_name_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="USER/MODEL"):
        ModelName.parse(text)


def test_names_are_said_as_they_are_typed() -> None:
    assert str(ModelName.parse(" u/M-1.5_x:q8_0 ")) == "u/M-1.5_x:q8_0"
    assert [quant_of(name) for name in ("m-1.5b.gguf", "a/m-q4_0.gguf", PARTS[0])] == ["", "Q4_0", "Q4_K_M"]
    assert [tag_of(name) for name in ("m.gguf", "m-1.5b.gguf", "m-mxfp4.gguf")] == ["", "5B", "MXFP4"]


@pytest.mark.parametrize(
    ("model", "paths", "expected"),
    [
        ("m-Q8_0.gguf", ["mmproj-m-f16.gguf", "mmproj-m-Q8_0.gguf"], "mmproj-m-Q8_0.gguf"),
        ("m-Q4_K_M.gguf", ["mmproj-m-f16.gguf", "mmproj-m-Q8_0.gguf"], "mmproj-m-Q8_0.gguf"),
        ("deep/m-F16.gguf", ["mmproj-f16.gguf", "deep/mmproj-q8_0.gguf"], "deep/mmproj-q8_0.gguf"),
        ("m-F16.gguf", ["deep/mmproj-f16.gguf"], None),
        ("m-F16.gguf", ["m-F16.gguf", "mmproj.txt"], None),
    ],
)
def test_the_nearest_projector_of_most_similar_quantization(model: str, paths: list[str], expected: str | None) -> None:
    assert projector_of(model, paths) == expected
