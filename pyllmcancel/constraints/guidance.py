"""Constraints by JSON schema or grammar: llguidance decides, and this module connects it to a model and a request.

A model's vocabulary is read once. That takes a second for 260,000 tokens, and llguidance keeps the GIL meanwhile, so a
server does it before it serves requests. A grammar is compiled once for a request, in a thread for which only that
request waits, and each choice starts from a copy. The work for every token, a mask and a state, takes tens of
microseconds.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import llguidance
import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from pyllmcancel.errors import ConstraintError, InvalidRequestError
from pyllmcancel.inner_tokenizer import InnerTokenizer

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pyllmcancel._native import Model

# Between the parts of a JSON text: enough for any indentation, but a limit for a model that only writes blanks.
WHITESPACE = r"( |\n{1,2}[ \t]{0,32})?"
# Only its own message: neither the parser's state nor the grammar belongs into an answer.
LIMITS = LLParserLimits(verbose_errors=False)
LONGEST_MESSAGE = 500  # characters; some messages quote a pattern
IN_WORDS = {
    "NoExtensionBias": "there is no answer that it allows",
    "NoExtension": "there is no answer that it allows",
    "LexerTooComplex": "its patterns are too complex",
    "ParserTooComplex": "it has too many alternatives",
}
SILENT = 0  # otherwise llguidance writes to standard error


class Vocabulary:
    """All that llguidance needs of a tokenizer. No text contains `special_token_ids`: control and end tokens."""

    bos_token_id = None

    def __init__(self, model: Model) -> None:
        self._tokenize = InnerTokenizer(model)
        self.tokens = model.pieces(special=True)
        self.eos_token_ids = model.eog_tokens()
        ends = frozenset(self.eos_token_ids)
        self.special_token_ids = [
            token
            for token, (piece, shown) in enumerate(zip(self.tokens, model.pieces(), strict=True))
            if token in ends or (piece and not shown)
        ]
        # A model without an end token gets its last token, which then ends nothing.
        self.eos_token_id = next(iter(self.eos_token_ids), model.n_vocab - 1)

    def __call__(self, text: bytes | str) -> list[int]:
        return self._tokenize(text)

    def tokenizer(self) -> LLTokenizer:
        """Return the tokenizer that llguidance makes of the vocabulary. Call this once: it removes the tokens."""
        wrapper = llguidance.TokenizerWrapper(self)
        ends: Any = self.eos_token_ids or None
        made = LLTokenizer(wrapper, eos_token=ends, slices=LLTokenizer.json_slices())
        # llguidance has a copy, and keeps this wrapper, which it asks for the tokens of texts.
        self.tokens = wrapper.tokens = []
        return made


END_OF_BYTES = 256


class PlainBytes:
    """A vocabulary of all bytes, to compile a grammar without a model: cost and meaning are the same."""

    n_vocab = END_OF_BYTES + 1

    def pieces(self, *, special: bool = False) -> list[bytes]:
        return [self.piece(token, special=special) for token in range(self.n_vocab)]

    def piece(self, token: int, *, special: bool = False) -> bytes:
        return bytes([token]) if token < END_OF_BYTES else b"<end>" * special

    def eog_tokens(self) -> list[int]:
        return [END_OF_BYTES]

    def tokenize(self, text: str | bytes, *, add_special: bool = True, parse_special: bool = False) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)


class Guidance:
    """Compiles for one model. Any thread may call any method; the first caller reads the vocabulary."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._lock = threading.Lock()
        self._tokenizer: LLTokenizer | None = None

    @property
    def tokenizer(self) -> LLTokenizer:
        """The tokenizer of the vocabulary. llguidance keeps the GIL while it is made."""
        with self._lock:
            if self._tokenizer is None:
                self._tokenizer = Vocabulary(self._model).tokenizer()
            return self._tokenizer

    def compile(self, grammar: str, param: str) -> Guide:
        """Return the guide of a grammar in llguidance's Lark; InvalidRequestError, which names `param`."""
        with panics_reported(param):
            matcher = LLMatcher(self.tokenizer, LLMatcher.grammar_from_lark(grammar), log_level=SILENT, limits=LIMITS)
        if matcher.is_error():
            raise InvalidRequestError(_own_words(matcher.get_error()), param)
        guide = Guide(matcher, self._model.n_vocab, param)
        # Exceeded limits, and grammars that allow nothing, show up when the first token is asked for.
        try:
            nothing = not guide.new().mask().any()
        except ConstraintError as error:
            raise InvalidRequestError(str(error), param) from error
        if nothing:
            raise InvalidRequestError("there is no answer that it allows", param)
        return guide

    def check_schema(self, schema: Mapping[str, Any], param: str, *, lenient: bool = False) -> None:
        """Compile a schema by itself, so that the error names `param` and nothing else."""
        # By the JSON compiler's own grammar, whose errors do not quote the whole schema.
        try:
            grammar = LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides={"lenient": lenient})
        except ValueError as error:  # the parser's: 128 nested objects are too many
            raise InvalidRequestError(_own_words(str(error)), param) from error
        with panics_reported(param):
            is_error, messages = LLMatcher.validate_grammar_with_warnings(grammar, self.tokenizer, limits=LIMITS)
        if is_error:
            raise InvalidRequestError(_own_words(messages[0]), param)


class Guide:
    """A compiled grammar, made from the field `param`, with the state of one answer: each choice has a copy.

    Tokens that end an answer are allowed where the grammar may end.
    """

    def __init__(self, matcher: LLMatcher, n_vocab: int, param: str) -> None:
        self._matcher = matcher
        self._n_words = (n_vocab + 31) // 32
        self._param = param

    def mask(self) -> NDArray[np.uint32]:
        words = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint32)
        if self._matcher.is_error():
            raise self._error()
        return words[: self._n_words]

    def accept(self, token: int) -> bool:
        if not self._matcher.consume_token(token):
            raise self._error()
        return self._matcher.is_stopped()

    def fork(self) -> Guide:
        return Guide(self._matcher.deep_copy(), 32 * self._n_words, self._param)

    new = fork

    def _error(self) -> ConstraintError:
        # Only allowed tokens are sampled, so the grammar has exceeded one of llguidance's limits.
        return ConstraintError(_own_words(self._matcher.get_error()), self._param)

    def allows(self, tokens: list[int]) -> bool:
        """Return whether the answer could continue with all of these."""
        return self._matcher.validate_tokens(tokens) == len(tokens)


@contextmanager
def panics_reported(param: str) -> Iterator[None]:
    """Make an error of the request of a panic in llguidance: some that it does not catch itself are no `Exception`."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # it is in no module
            raise
        raise InvalidRequestError("llguidance fails to compile it", param) from None


def json_rule(schema: Mapping[str, Any] | bool, *, lenient: bool = False) -> str:
    """Return a grammar's expression for JSON that obeys `schema`; `lenient` ignores what llguidance cannot express."""
    if isinstance(schema, bool):
        return f"%json {json.dumps(schema)}"
    options = {"whitespace_flexible": False, "whitespace_pattern": WHITESPACE, "lenient": lenient}
    options |= {"coerce_one_of": lenient}
    return "%json " + json.dumps({**schema, "x-guidance": options})


def _own_words(error: str) -> str:
    """Return the error in words, without the grammar that it quotes."""
    if "panic" in error:
        return "it is too large, or too deeply nested"
    words = error.partition("\n<")[0].strip()
    return IN_WORDS.get(words, words[:LONGEST_MESSAGE])
