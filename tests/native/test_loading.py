"""Loading: each way to fail says what is wrong, and Python goes on meanwhile."""

import threading
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFValueType as Type

from pyllmcancel._native import Context, Model, SwappedPrefix
from pyllmcancel.config import EngineConfig
from pyllmcancel.engine.engine import Engine
from pyllmcancel.engine.loading import Loading
from pyllmcancel.errors import LoadCancelled, ModelLoadError, UsageError
from pyllmcancel.requests.observer import Observer
from tests.support import broken_models
from tests.support.gguf_bytes import GgufBytes, Value
from tests.support.http_asgi import LIMIT
from tests.support.threads import N_THREADS
from tests.support.tiny_embedders import write_tiny_encoder
from tests.support.tiny_models import write_tiny_llama

BROKEN: dict[str, tuple[Callable[[Path], Path], str]] = {
    "a folder": (lambda path: path.mkdir() or path, ""),
    "not a GGUF": (broken_models.write_not_gguf, "magic"),
    "a cut header": (broken_models.write_cut_header, "fail|read|header"),
    "cut tensors": (broken_models.write_cut_tensors, "bounds|corrupted|incomplete|data"),
    "no vocabulary": (partial(broken_models.write_without_vocabulary, declared=True), "no vocabulary"),
    "an undeclared vocabulary": (partial(broken_models.write_without_vocabulary, declared=False), "tokenizer|vocab"),
    "a hybrid of one kind": (broken_models.write_hybrid_of_one_kind, "all of one kind"),
    "an unknown architecture": (broken_models.write_unknown_architecture, "unheard-of"),
}


@pytest.mark.parametrize(("write", "why"), BROKEN.values(), ids=BROKEN.keys())
def test_a_file_that_cannot_be_served_says_why(tmp_path: Path, write: Callable[[Path], Path], why: str) -> None:
    path = write(tmp_path / "broken.gguf")
    with pytest.raises(ModelLoadError, match=rf"(?s)broken\.gguf: .*({why})"):
        Model.load(path)


def test_an_error_names_its_own_file_and_not_an_earlier_one(tmp_path: Path) -> None:
    broken_models.write_unknown_architecture(tmp_path / "first.gguf")
    broken_models.write_not_gguf(tmp_path / "second.gguf")
    with pytest.raises(ModelLoadError):
        Model.load(tmp_path / "first.gguf")
    with pytest.raises(ModelLoadError) as caught:
        Model.load(tmp_path / "second.gguf")
    assert "unheard-of" not in str(caught.value)


def test_loading_can_be_cancelled_at_any_fraction(model_files: dict[str, Path]) -> None:
    fractions: list[float] = []
    Model.load(model_files["attention"], progress=fractions.append, progress_interval=0.0)
    assert len(fractions) > 2
    for at in fractions:
        with pytest.raises(LoadCancelled):
            Model.load(model_files["attention"], progress=lambda fraction, at=at: fraction < at, progress_interval=0.0)


def test_progress_is_told_first_and_last_and_no_more_often_than_asked(model_files: dict[str, Path]) -> None:
    fractions: list[float] = []
    Model.load(model_files["attention"], progress=fractions.append, progress_interval=1e6)
    assert fractions == [0.0, 1.0]


def test_an_engine_that_is_given_up_before_it_begins_is_cancelled(model_files: dict[str, Path]) -> None:
    given_up = threading.Event()

    def load(config: EngineConfig, **options: Any) -> Engine:
        assert given_up.wait(LIMIT)
        return Engine.load(config, **options)

    config = EngineConfig(model=model_files["attention"], threads=N_THREADS)
    with closing(Loading(config, Observer(), load=load)) as loading:
        loading.give_up()
        given_up.set()
        assert isinstance(loading.future.exception(LIMIT), LoadCancelled)


def test_a_model_loads_without_mmap(model_files: dict[str, Path]) -> None:
    assert Model.load(model_files["attention"], mmap=False, check_tensors=True).n_vocab == 1024


def test_a_model_outlives_its_contexts_and_a_context_its_model_object(model_files: dict[str, Path]) -> None:
    model = Model.load(model_files["attention"])
    first = Context(model, n_ctx=64, n_seq_max=1, n_batch=8, n_threads=N_THREADS)
    del first
    second = Context(model, n_ctx=64, n_seq_max=1, n_batch=8, n_threads=N_THREADS)
    n_vocab = model.n_vocab
    del model
    assert second.model.n_vocab == n_vocab


def test_what_a_model_says_of_itself(model_files: dict[str, Path]) -> None:
    model = Model.load(model_files["attention"])
    assert (model.n_ctx_train, model.n_embd, model.n_layer, model.n_swa) == (2048, 64, 2, 0)
    assert model.metadata["general.architecture"] == "llama"
    assert model.description.startswith("llama ")
    assert "?" not in model.description, "llama.cpp does not know how large it is"
    assert model.chat_template is not None
    assert set(model.special_tokens) >= {"bos", "eos", "eot", "fim_pre", "fim_suf", "fim_mid"}
    assert model.size == 4 * model.n_params
    assert not model.adds_bos


@pytest.mark.parametrize("length", [1, 40_000], ids=["short", "long enough for a thread of its own"])
def test_a_failed_assertion_of_llama_cpp_is_an_error(model_files: dict[str, Path], tmp_path: Path, length: int) -> None:
    """A vocabulary of a size and nothing else: llama.cpp asserts that there is a tokenizer."""
    base = GgufBytes.read(model_files["attention"])
    base = base.with_key("tokenizer.ggml.model", Value(Type.STRING, b"no_vocab"))
    path = base.with_key("llama.vocab_size", Value(Type.UINT32, 1024)).write(tmp_path / "model.gguf")
    model = Model.load(path, require_vocabulary=False)
    with pytest.raises(RuntimeError, match="GGML_ASSERT"):
        model.tokenize("x" * length)


def test_a_rotation_of_nothing_is_refused_where_llama_cpp_has_it(model_files: dict[str, Path], tmp_path: Path) -> None:
    base = GgufBytes.read(model_files["sliding-window"])
    path = base.with_key("gemma2.rope.dimension_count", Value(Type.UINT32, 0)).write(tmp_path / "model.gguf")
    with pytest.raises(ModelLoadError, match="rotates"):
        Model.load(path)


def test_texts_that_are_to_end_with_a_missing_token_are_refused(tmp_path: Path) -> None:
    base = GgufBytes.read(write_tiny_encoder(tmp_path / "encoder.gguf"))
    path = base.with_key("tokenizer.ggml.add_eos_token", Value(Type.BOOL, value=True)).write(tmp_path / "model.gguf")
    with pytest.raises(ModelLoadError, match=r"tokenizer\.ggml\.eos_token_id is missing"):
        Model.load(path)


@pytest.mark.parametrize("made_elsewhere", [Model, SwappedPrefix])
def test_what_a_factory_makes_cannot_be_made_otherwise(made_elsewhere: Callable[[], object]) -> None:
    with pytest.raises(TypeError, match="is made by"):
        made_elsewhere()


def test_long_texts_of_a_model_are_whole(tmp_path: Path) -> None:
    long = "long " * 100
    model = Model.load(write_tiny_llama(tmp_path / "model.gguf", chat_template=long))
    assert model.metadata["tokenizer.chat_template"] == long


@pytest.mark.parametrize("mmap", [False, True])
def test_a_model_that_is_locked_into_memory_loads(model_files: dict[str, Path], mmap: bool) -> None:
    assert Model.load(model_files["attention"], mlock=True, mmap=mmap).tokenize("hello")


def test_more_sequences_than_llama_cpp_has_are_refused(model_files: dict[str, Path]) -> None:
    model = Model.load(model_files["attention"])
    with pytest.raises(Exception, match="n_seq_max") as caught:
        Context(model, n_ctx=64, n_seq_max=10_000, n_batch=10_000, n_threads=N_THREADS)
    assert not isinstance(caught.value, UsageError)


def test_other_threads_run_while_a_model_loads(model_files: dict[str, Path], no_preemption: None) -> None:
    """With no preemption another thread gets to run only where this one releases the GIL."""
    for _attempt in range(100):
        go, ran = threading.Event(), threading.Event()
        other = threading.Thread(target=lambda go=go, ran=ran: go.wait() and ran.set())
        other.start()
        go.set()
        Model.load(model_files["attention"], mmap=False)
        ran_meanwhile = ran.is_set()
        other.join()
        if ran_meanwhile:
            return
    raise AssertionError("no other thread ever ran during a load")


def test_a_description_counts_the_parameters(tmp_path: Path) -> None:
    """By its 30 layers llama.cpp takes the model for one of 256M."""
    model = Model.load(write_tiny_llama(tmp_path / "tiny.gguf", n_layer=30))
    assert (model.description, model.n_params) == ("llama 1.2M all F32", 1_240_896)
