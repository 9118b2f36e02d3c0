"""Typed contract of the compiled module; ``tests/support/fake_native.py`` meets it too."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from os import PathLike
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from pyllmcancel.adapters import Adapter, Scales
from pyllmcancel.placement import Device, DeviceUse, Placement
from pyllmcancel.pooling import EmbedResult, Pooling
from pyllmcancel.sampling import SamplingParams
from pyllmcancel.step import GraphCounts, StepItem, StepResult

class _Mortal(Protocol):
    def end_all(self, why: str) -> None: ...

MemoryKind = Literal["attention", "recurrent", "hybrid", "none"]

class CancelFlag:
    """The sticky flag of one request, read by ggml between graph nodes. There is no way to lower it."""

    def __init__(self) -> None: ...
    def set(self) -> None: ...
    def is_set(self) -> bool: ...

def has_hung_up(socket: int) -> bool:
    """Return whether the other end of `socket`, a file descriptor, has closed, or the connection broke.

    It never waits, and reads nothing. The result for a descriptor that is not open is False.
    """

def kernel_features() -> frozenset[str]:
    """Return the CPU features that the kernels were compiled for, in llama.cpp's names: AVX2, AVX512_VNNI, REPACK …"""

def cpu_variant() -> str | None:
    """Return the CPU's back end for this machine: ``zen4``, ``haswell`` …; None if it is linked in."""

def json_excess(
    text: bytes | bytearray, *, values: int, depth: int, fields: int
) -> tuple[Literal["values", "depth", "fields"], bytes] | None:
    """Return the limit that a JSON text exceeds, and the key of the outermost object under which it does; None for no
    excess.

    `values` are scalars, arrays, objects and keys together; an empty array or object counts twice. The text is not
    validated: only brackets, commas, colons and strings are looked at.
    """

def check_grammar(grammar: str) -> None:
    """Check that a GBNF is within the limits of :class:`Sampler`, but not that it is valid.

    Raises
    ------
    UsageError
        The grammar is too long, too deep, or repeats too much.
    """

def tell_before_abort(engine: _Mortal) -> None:
    """Let `engine` end its requests before a failed assertion of ggml ends the process in the middle of a step.

    The engine is not kept alive. The process ends when `end_all` returns.
    """

def devices() -> list[Device]:
    """Return the devices that can compute beside the CPU, with their present memory."""

def buffer_types() -> list[str]:
    """Return the places where tensors can be kept: the CPU's memory, and that of each device."""

def check_tensor_pattern(pattern: str) -> None:
    """Raise UsageError if llama.cpp cannot match tensors' names with the pattern."""

def memory_use(
    path: str | PathLike[str], placement: Placement, with_host: bool = False, **context: object
) -> list[DeviceUse]:
    """Return the memory that a model and its context would take of each device of `placement` and, as the last one if
    `with_host` is True, of the CPU's memory, with the GIL released.

    Weights that are repacked for the CPU are not among those of the CPU's memory. Nothing is loaded and no cells are
    made. `context` are options of :class:`Context` or, with `pooling`, of
    :class:`Embedder`; options that do not affect memory are ignored.

    Raises
    ------
    UsageError
        `placement` names a device that is not there.
    ModelLoadError
        llama.cpp cannot load such a file, or make such a context.
    """

def fitted(
    path: str | PathLike[str], placement: Placement, margins: Sequence[int], **context: object
) -> Placement | None:
    """Return llama.cpp's choice of layers, shares and overrides that leaves `margins` free; None if there is none.

    Parameters
    ----------
    placement
        The placement, which leaves these open.
    margins
        The bytes to leave free on each device; the last one is for all that follow.
    context
        As for :func:`memory_use`, which raises the same.
    """

class Model:
    """A loaded GGUF model and its vocabulary; immutable, shared by any number of contexts and threads.

    Only :meth:`load` makes one.
    """

    def __init__(self, /, *args: object, **kwargs: object) -> None: ...
    @staticmethod
    def load(
        path: str | PathLike[str],
        *,
        n_gpu_layers: int = 0,
        placement: Placement | None = None,
        mmap: bool = True,
        mlock: bool = False,
        check_tensors: bool = False,
        require_vocabulary: bool = True,
        without_weights: bool = False,
        lora: Iterable[str | PathLike[str]] = (),
        heads: bool = False,
        progress: Callable[[float], bool | None] | None = None,
        progress_interval: float = 0.1,
    ) -> Model:
        """Load a GGUF file, with the GIL released.

        Parameters
        ----------
        n_gpu_layers
            The number of layers on devices, counted from the last; negative: all. Ignored if there is a `placement`.
        require_vocabulary
            False loads models that can neither read text nor write it: tokens in, tokens out.
        without_weights
            Load the model's facts only: it takes no memory, and can compute nothing.
        lora
            LoRA adapters' files, from which the sequences of every context may choose.
        heads
            Load the model's own heads, too, if the file has any: see `n_heads`.
        progress
            Called from this thread with a fraction in [0, 1], from time to time and at the end; returning False cancels
            the load.
        progress_interval
            The minimum of seconds between two of those calls.

        Raises
        ------
        ModelLoadError
            Not a GGUF, truncated, no vocabulary, unknown architecture …: the message quotes llama.cpp.
        LoadCancelled
            `progress` returned False.
        """

    @property
    def n_ctx_train(self) -> int: ...
    @property
    def n_embd(self) -> int: ...
    @property
    def n_layer(self) -> int: ...
    @property
    def n_swa(self) -> int:
        """The length of the sliding attention window in tokens; 0 for none."""

    @property
    def n_heads(self) -> int:
        """The heads that guess further tokens and were loaded; 0 if there are none that can be computed here."""

    @property
    def n_params(self) -> int: ...
    @property
    def layers_by_device(self) -> dict[str, int]:
        """The number of layers on each device, the output layer included; the CPU is one device."""

    @property
    def is_offloaded(self) -> bool:
        """True if a GPU has some of the model's weights."""

    @property
    def size(self) -> int:
        """The size of all tensors, in bytes."""

    @property
    def n_vocab(self) -> int: ...
    @property
    def memory_kind(self) -> MemoryKind: ...
    @property
    def has_invariant_rows(self) -> bool:
        """True if a row of each matrix product has the same bits, however many rows are multiplied with it."""

    @property
    def can_divide_cells(self) -> bool:
        """True if a context of this model can be made with ``kv_unified=False``; otherwise its cells are unified."""

    @property
    def description(self) -> str: ...
    @property
    def metadata(self) -> dict[str, str]: ...
    @property
    def chat_template(self) -> str | None: ...
    @property
    def adapters(self) -> list[Adapter]:
        """The LoRA adapters that were loaded with the model, by their numbers."""

    @property
    def special_tokens(self) -> dict[str, int]:
        """Those of bos, eos, eot, sep, fim_pre, fim_suf, fim_mid, fim_pad, fim_rep and fim_sep that the model has."""

    @property
    def adds_bos(self) -> bool: ...
    @property
    def adds_eos(self) -> bool: ...
    @property
    def adds_sep(self) -> bool: ...
    @property
    def n_scores(self) -> int:
        """The number of scores that the model's classification head gives a text; 0 for a model without a head."""

    @property
    def labels(self) -> list[str]:
        """The names of these scores, if the file has them."""

    def is_eog(self, token: int) -> bool: ...
    def eog_tokens(self) -> list[int]:
        """The tokens that end an answer, found with the GIL released."""

    def tokenize(self, text: str | bytes, *, add_special: bool = True, parse_special: bool = False) -> list[int]: ...
    def longest_piece(self) -> int:
        """The bytes of the longest token, so that a text's length gives a lower bound of its tokens; 0 if it gives
        none.
        """

    def piece(self, token: int, *, special: bool = False) -> bytes:
        """Return the bytes of one token; control tokens are empty unless `special`."""

    def pieces(self, *, special: bool = False) -> list[bytes]:
        """Return the bytes of all tokens, by their ids, read with the GIL released."""

class Sampler:
    """One choice's sampler: its own random state, penalties and grammar, kept across a preemption.

    Raises
    ------
    UsageError
        The grammar cannot be parsed, or does not allow its prefix, or has an invalid trigger, or a biased token is not
        in the vocabulary.
    """

    def __init__(self, model: Model, sampling: SamplingParams, sibling: Sampler | None = None) -> None:
        """`sibling` is the sampler of another choice of the same request: its compiled grammar is shared."""
    def accept_prompt(self, tokens: Sequence[int]) -> None:
        """Let penalties see a prompt; UsageError for a token that is not in the vocabulary."""

    def restrict(self, *masks: NDArray[np.uint32] | None) -> None:
        """Allow, in each of the next choices, the tokens whose bits are set, lowest bit first; None allows all.

        The second mask is for the choice after the first drafted token, and so on; those that a step did not need are
        replaced by the next call.

        A mask that allows nothing is a fault of the row: `LogitFault.GRAMMAR`.
        """

class _TemplateEngine(Protocol):
    """The engine that renders templates for a `ChatTemplate`. An error that it raises is the reason why a template is
    refused.
    """

    def caps(self, source: str, /) -> Mapping[str, bool]:
        """Return the capabilities of a template, under llama.cpp's names."""

    def render(self, source: str, variables: str, /) -> str:
        """Return the text; `variables` are a JSON object."""

class ChatTemplate:
    """One model's chat template: rendered by an engine, analysed by llama.cpp. One thread at a time.

    Nothing limits the time, the memory and the stack that rendering takes: a template that is not trusted belongs into
    a process of its own.

    Raises
    ------
    InvalidRequestError
        The template cannot be compiled.
    MemoryError
        Raised by every method: the engine has no memory left.
    """

    caps: dict[str, bool]
    """The capabilities of the template, under llama.cpp's names: supports_tools, supports_parallel_tool_calls …"""

    def __init__(
        self,
        source: str,
        engine: _TemplateEngine,
        bos: str = "",
        eos: str = "",
        *,
        adds_bos: bool = False,
        adds_eos: bool = False,
    ) -> None:
        """`adds_bos`: the tokenizer adds the token."""

    def apply(self, inputs: bytes) -> bytes:
        """Render a conversation: JSON in, JSON out.

        Parameters
        ----------
        inputs
            ``messages`` and ``tools`` as OpenAI has them; ``tool_choice`` (auto, required, none),
            ``parallel_tool_calls``, ``json_schema`` (null), ``grammar``, ``add_generation_prompt`` (true),
            ``continue_final_message`` (false, true, content, reasoning_content), ``reasoning_format`` (none, auto,
            deepseek, deepseek-legacy), ``enable_thinking`` (true), ``chat_template_kwargs``, ``force_pure_content``,
            ``use_jinja`` (true).

        Returns
        -------
        bytes
            ``prompt``, and of the answer: ``format``, ``parser``, ``grammar``, ``grammar_lazy``, ``grammar_triggers``
            (objects of type, value and, of type token, token), ``preserved_tokens``, ``additional_stops``,
            ``generation_prompt``, ``supports_thinking``, ``thinking_start_tag``, ``thinking_end_tags``.

        Raises
        ------
        InvalidRequestError
            In llama.cpp's words, or the template's; its `param` is ``messages``.
        """

class ChatParser:
    """Parses one answer while it streams. One thread at a time.

    However an answer is cut into pieces, the parts of each kind are the same, put together. After the first violation
    of the form, the rest of the answer is content.

    Raises
    ------
    UsageError
        The form is invalid.
    """

    def __init__(self, form: bytes, sibling: ChatParser | None = None) -> None:
        """`form` is what :meth:`ChatTemplate.apply` returned; its format, parser and generation_prompt are read.

        With ``is_continuation`` true, the beginning of the answer that is in the prompt is not returned as a part.
        `sibling` is the parser of another choice of the same request: its compiled form is shared, and `form` is not
        read.
        """

    @property
    def n_calls(self) -> int:
        """The number of calls that have begun."""

    def feed(
        self, text: str, final: bool = False
    ) -> list[tuple[str, str] | tuple[Literal["call"], int, str, str] | tuple[Literal["arguments"], int, str]]:
        """Take more `text`; return the new parts. With `final`, the answer is over. The GIL is released.

        Returns
        -------
        list
            The new parts: ("reasoning", text), ("content", text), ("call", index, name, id) and ("arguments", index,
            text); an id is empty if the model gives none.
        """

def worth_aborting(
    n_tokens: int, n_surviving_tokens: int, done: float, *, fixed_cost: float, cost_per_token: float
) -> bool:
    """Return whether the rest of a step costs more than computing its surviving sequences again: the abort policy.

    Parameters
    ----------
    n_tokens, n_surviving_tokens
        The tokens of the step, and of its sequences that are not cancelled.
    done
        The computed fraction of the step, in [0, 1].
    fixed_cost, cost_per_token
        The cost of a step of n tokens is ``fixed_cost + cost_per_token * n``, in any unit of time.
    """

def idle_ticks(text: bytes, cpus: Sequence[int]) -> int | None:
    """Return the ticks that `cpus` were idle or waited for a disk, from the beginning of ``/proc/stat``, if they are
    there.
    """

def n_runnable(text: bytes) -> int:
    """Return the number of runnable threads, from ``/proc/loadavg``; 0 if it is not there."""

class ThreadPolicy:
    """Decides how many threads each step should have, at most `most`: as many as there are free cores."""

    def __init__(self, most: int) -> None: ...
    @property
    def n_threads(self) -> int: ...
    def rest(self) -> None:
        """Note that no step follows for now."""

    def take(self, at: int, idle: int, own: int, n_crowded_out: int = 0) -> int:
        """Take a reading; returns the next step's threads.

        Parameters
        ----------
        at
            The time of the reading on a steady clock. All values are in microseconds.
        idle
            The idle time of all cores together so far.
        own
            The CPU time of this process so far.
        n_crowded_out
            The number of runnable threads at this moment, less the number of cores.
        """

class SwappedPrefix:
    """The memory of an idle prefix, copied out of a context: made by :meth:`Context.copy_out`, or from a file."""

    def __init__(self, /, *args: object, **kwargs: object) -> None: ...
    @staticmethod
    def blank(
        tokens: Sequence[int], least: int, parts: Sequence[tuple[int, int]]
    ) -> tuple[SwappedPrefix, list[memoryview]] | None:
        """Make a prefix of these tokens, whose states the caller writes before its first use.

        Parameters
        ----------
        least
            As the attribute.
        parts
            For each of `parts`, its number of tokens and of bytes.

        Returns
        -------
        tuple of SwappedPrefix and list of memoryview, or None
            The prefix, and the memory of each state; None if there is no memory.

        Raises
        ------
        UsageError
            The parts do not fit the tokens.
        """

    @property
    def least(self) -> int:
        """Fewer tokens than these can be reused from a checkpoint only."""

    @property
    def parts(self) -> list[tuple[int, memoryview]]:
        """The state of all tokens, then the checkpoints, shortest first; each with its number of tokens."""

    @property
    def n_tokens(self) -> int: ...
    @property
    def n_bytes(self) -> int: ...
    @property
    def tokens(self) -> list[int]: ...

def image_size(data: bytes) -> tuple[int, int] | None:
    """Return the width and the height that an image file's header says; None if it is not one that can be read."""

class MediaChunk:
    """A picture's, or a sound's, run of tokens in a prompt; made by :meth:`MediaEncoder.parts`.

    Attributes
    ----------
    first_token
        The tokens are `first_token`, `first_token` - 1, …: negative, and of this content alone.
    n_tokens, n_pos
        Rows of the embedding, and positions that they take.
    non_causal
        True if all rows look at each other, so that one step computes them.
    divisible
        True if a prefix may end inside.
    encoded
        True if the embedding is there.
    n_bytes
        The memory of the embedding, or before of what is to be encoded.
    """

    @property
    def first_token(self) -> int: ...
    @property
    def n_tokens(self) -> int: ...
    @property
    def n_pos(self) -> int: ...
    @property
    def non_causal(self) -> bool: ...
    @property
    def divisible(self) -> bool: ...
    @property
    def tokens(self) -> list[int]: ...
    @property
    def encoded(self) -> bool: ...
    @property
    def n_bytes(self) -> int: ...
    def rows(self) -> NDArray[np.float32] | None:
        """Return the embedding, row by row; None before it is made."""

class Audience:
    """The requests that wait for one encoding, which ends when all of them are cancelled. Any thread may join."""

    def __init__(self) -> None: ...
    def join(self, flag: CancelFlag) -> None: ...
    def leave(self) -> None:
        """Have all of them leave, without a cancel."""
    def has_left(self) -> bool: ...

class MediaEncoder:
    """A projector: makes embeddings of pictures and sounds for one model.

    Parameters
    ----------
    path
        A GGUF file of a projector.
    every_node
        For tests: a cancel is looked for after each node of the graph.

    Raises
    ------
    ModelLoadError
        The file is not a projector for this model.
    """

    def __init__(
        self,
        model: Model,
        path: str | PathLike[str],
        *,
        n_threads: int,
        offload: bool = True,
        image_min_tokens: int | None = None,
        image_max_tokens: int | None = None,
        every_node: bool = False,
    ) -> None: ...
    @property
    def has_vision(self) -> bool: ...
    @property
    def has_audio(self) -> bool: ...
    @property
    def sample_rate(self) -> int:
        """Samples a second that it hears; -1 if it does not."""
    @property
    def polls(self) -> int:
        """Nodes computed by the last encoding."""
    def parts(
        self, data: bytes, *, audio: bool, flag: CancelFlag, seconds: float, first: int | None = None
    ) -> list[list[int] | MediaChunk]:
        """Decode and prepare a file; return what stands for it in a prompt: tokens of text, and runs of rows.

        Parameters
        ----------
        flag
            Ends the decoding when it is raised.
        seconds
            Limit of the decoding.
        first
            The first token of the rows, for a file that had it before.

        Raises
        ------
        UsageError
            It cannot be decoded or prepared.
        """
    def n_image_tokens(self, width: int, height: int) -> int:
        """Return the number of tokens of a picture of this size, which is not decoded; UsageError as `parts`."""
    def encode(self, chunk: MediaChunk, audience: Audience) -> bool:
        """Make the rows of `chunk`; False, and nothing is kept, if all of `audience` have left."""
    def raise_at(self, node: int, flag: CancelFlag) -> None:
        """For tests: raise `flag` once that node of the next encoding is computed, counted from 1."""

class Context:
    """A llama.cpp context: its cells, its sequences, and the one function that computes.

    Obey these rules: one thread at a time (a second one gets ContextBusy while a step runs); `open` an idle seq_id,
    `step` it, `close` it; arrays from `logits` show the last step only, and the next one overwrites them. While a step
    is ahead, `collect` it: all calls but `forbid_ahead`, `allow_ahead` and those for constants get ContextBusy.
    """

    model: Model

    def __init__(
        self,
        model: Model,
        *,
        n_ctx: int,
        n_seq_max: int,
        n_batch: int,
        n_threads: int,
        n_threads_batch: int | None = None,
        adapt_threads: bool = False,
        kv_unified: bool = True,
        kv_offload: bool = True,
        op_offload: bool = True,
        flash_attention: int = -1,
        type_k: int = 1,
        type_v: int = 1,
        checkpoint_interval: int = 64,
        n_checkpoints: int = 4,
        checkpoint_bytes: int = 1 << 30,
        n_states: int = 0,
        heads: bool = False,
        cut_seconds: float | None = None,
        abortable: bool = True,
        trust_any_memory: bool = False,
    ) -> None:
        """Make a context.

        Parameters
        ----------
        n_states
            The number of hidden states that are kept of each sequence's last tokens, for a context of heads.
        heads
            The model's own heads compute, not the model. Each pending token needs a hidden state, see `follow`. The
            last known token of a sequence is computed in a step that has no other tokens than such; the state that goes
            with the token sampled after it is the head's own.
        """

    @property
    def n_threads(self) -> int:
        """The compute threads of the running step, or of the last one; with `adapt_threads`, `n_threads` at most."""

    @property
    def n_ctx(self) -> int:
        """The limit of one sequence's tokens."""

    @property
    def n_cells(self) -> int:
        """The limit of the tokens of all sequences together."""

    @property
    def kv_unified(self) -> bool:
        """True if any sequence may use any cell; otherwise each has `n_ctx` of its own. Not all models can divide
        them.
        """

    @property
    def n_seq_max(self) -> int: ...
    @property
    def n_batch(self) -> int: ...
    @property
    def n_cells_used(self) -> int:
        """The cells held by all sequences, including idle ones; cells that several hold count once."""

    @property
    def checkpoint_bytes(self) -> int:
        """The bytes of all checkpoints: copies of states that cannot be rolled back."""

    def graph_counts(self) -> GraphCounts:
        """Return the parts and copies of the last graph, and how many graphs were used again."""

    @property
    def memory_kind(self) -> MemoryKind: ...
    def open(
        self,
        seq: int,
        tokens: Sequence[int],
        sampler: Sampler,
        flag: CancelFlag,
        *,
        n_held: int = 0,
        n_reusable: int = ...,
        n_described: int = 0,
        adapters: Scales = (),
        adapted_from: int = 0,
        media: Sequence[tuple[int, MediaChunk]] = (),
    ) -> int:
        """Start a request on idle `seq`; returns how many leading tokens were still in its cells.

        Parameters
        ----------
        n_held
            The number of tokens, all text, that `seq` holds and that come before `tokens`. So what is known already
            is not handed over again. They count as leading tokens.
        n_reusable
            The limit of leading tokens that may be reused of what the cells hold; without it, there is none. The caller
            knows by which adapters the cells were computed.
        n_described
            Leading tokens whose logprobs are wanted, in `StepRow.described`; they are all computed then.
        adapters, adapted_from
            The LoRA adapters that compute the tokens from that index on; none computes those before. In one step all
            tokens have the same adapters.
        media
            The pictures of the tokens, each with the number of its first token. None may be computed before it is
            encoded, and a step that computes rows of one computes nothing else.
        """

    def close(self, seq: int, *, keep: bool) -> None:
        """Take the request off `seq`; with `keep` its computed cells stay as an idle prefix. Idempotent."""

    def drop_cells(self, seq: int) -> None:
        """Free the cells of `seq`; if it is open it starts again from its first token."""

    def rest(self) -> None:
        """Let the compute threads sleep until the next step; between steps they spin."""

    def take_turns(self, encoder: MediaEncoder) -> None:
        """Let steps, from now on, take turns with what `encoder` computes in another thread."""

    def common_prefixes(self, tokens: Sequence[int], *, most: int = ...) -> list[int]:
        """Return, for every seq_id, how many leading `tokens`, `most` at most, its cells could give to a request."""

    def share_prefix(self, source: int, target: int, n_tokens: int, *, max_bytes: int) -> bool:
        """Give idle `target` the first cells of `source`.

        Divided cells are copied, all that `source` has. False if the copy takes more than `max_bytes`, or if the memory
        does not support this; `target` is then empty or unchanged.
        """

    @property
    def can_swap(self) -> bool:
        """True if cells can be copied out and back: not for recurrent, hybrid and sliding-window memories."""

    @property
    def can_copy(self) -> bool:
        """True if `copy_out` and `swap_in` work, for whatever purpose: not without flash attention."""

    @property
    def can_draft(self) -> bool:
        """True if steps may have drafts: in recurrent and hybrid memories a rejected one cannot be undone."""

    @property
    def is_offloaded(self) -> bool:
        """True if a GPU computes a part of its steps."""

    def common_with(self, prefixes: Sequence[SwappedPrefix], tokens: Sequence[int]) -> list[int]:
        """Return how many of `tokens` each of `prefixes` begins with, the last one never counted."""

    def swap_bytes(self, seq: int) -> int:
        """Return the bytes that copying `seq` out would take; 0 if it holds nothing."""

    def copy_out(self, seq: int, *, max_bytes: int) -> SwappedPrefix | None:
        """Copy the content of idle `seq` into plain memory, with its checkpoints; its cells are not changed.

        Returns None if `seq` holds nothing, or more than `max_bytes`, or if there is no memory.
        """

    def swap_in(self, seq: int, prefix: SwappedPrefix) -> bool:
        """Fill idle `seq` with `prefix`, and nothing else; False, and `seq` is empty, if there is no room."""

    def step(
        self,
        items: Iterable[tuple[int, int] | StepItem],
        *,
        fixed_cost: float = 0.0,
        cost_per_token: float = 1.0,
        ends: Iterable[tuple[int, Iterable[int]]] | None = None,
    ) -> StepResult:
        """Compute the next `n_tokens` tokens of each (seq, n_tokens) in one ``llama_decode``, and sample.

        The third value of a StepItem is a draft: tokens after the known ones, all of which are then to be computed. The
        sampler chooses after each as in single steps. The draft is accepted as far as it says what was chosen, and the
        cells of the rest are freed.

        The GIL is released for all of it. The costs (any unit of time) inform the abort policy.

        With `ends`, one for each item, a thread of the context's own computes. When each sequence has got its next
        token it begins, without waiting for Python, a step ahead: one token for each of the same sequences. It does not
        if one of them has ended or is cancelled, its row is at fault, cells are missing, or it is forbidden. If
        `StepResult.ahead` is true, `collect` is the next call.

        Parameters
        ----------
        ends
            The number of tokens that each sequence may still get, and the tokens that end it besides the model's own.

        Raises
        ------
        ContextBusy
            Another thread is inside a step, or a step is ahead.
        UsageError
            Too many tokens, or more than a sequence has pending; a draft where `can_draft` is False, or one that does
            not follow the known tokens, or is longer than the context.
        """

    def start_ahead(self) -> None:
        """Start the thread that computes steps with `ends`, so that the first such step cannot fail for lack of a
        thread.

        Idempotent.

        Raises
        ------
        ContextError
            The system gives no thread.
        """

    def collect(self, *, goes_on: bool) -> StepResult:
        """Wait for the step ahead; the GIL is released. With `goes_on` another step may begin; collect it, too.

        Raises
        ------
        ContextBusy
            Another thread is waiting for the step.
        UsageError
            No step is ahead.
        """

    def forbid_ahead(self) -> None:
        """Let no step begin ahead, until `allow_ahead`; may be called from any thread."""

    def allow_ahead(self) -> None: ...
    def give_way(self, flag: CancelFlag) -> None:
        """Have the next step, whatever it computes, abort once `flag` is raised: others' requests come first."""

    def raise_at(self, poll: int, flag: CancelFlag, *, n_later: int = 0) -> None:
        """For tests: raise `flag` at the given graph node, from 1, of the next step or of one `n_later` steps later."""

    def first_state(self, seq: int) -> int:
        """Return the first token of `seq` whose hidden state is kept; the number of committed tokens if none is."""

    def follow(self, seq: int, model: Context, of: int, *, first: int, n_tokens: int) -> None:
        """Give pending tokens of open `seq`, in this context of heads, the hidden states that they go with.

        Parameters
        ----------
        model
            The context that has computed the same tokens as a model, and kept their states.
        of, first
            The sequence there, and the number that the first token here has there.
        n_tokens
            The limit of the tokens that get their states.

        Raises
        ------
        UsageError
            A state is not kept. Only the first token of all needs none.
        """

    def n_committed(self, seq: int) -> int: ...
    def n_cells_of(self, seqs: Sequence[int]) -> int:
        """Return the number of cells that `seqs` hold together; cells that several hold count once."""

    def tokens(self, seq: int) -> list[int]: ...
    def logits(self, seq: int) -> NDArray[np.float32] | None:
        """Return the logits of `seq` in the last step, shape (n_vocab,), read-only, uncopied; None if it got none."""

class Embedder:
    """A llama.cpp context for texts: each has one normalised vector, or one of each token, or its scores.

    The rules are Context's: one thread at a time; `open` an idle seq_id, `step` it, `close` it, which keeps nothing.

    Parameters
    ----------
    n_ctx
        The cells, shared by all sequences; without meaning for a model without memory.
    n_batch
        The limit of tokens in one step.
    pooling
        The pooling; None: as the model's file says. NONE gives the vectors of all tokens, RANK the scores of the
        model's classification head.

    Raises
    ------
    ContextError
        The model's file names no pooling, or the model has no classification head, or there is no room for its buffers.
    """

    model: Model

    def __init__(
        self,
        model: Model,
        *,
        n_ctx: int,
        n_seq_max: int,
        n_batch: int,
        n_threads: int,
        n_threads_batch: int | None = None,
        adapt_threads: bool = False,
        kv_offload: bool = True,
        op_offload: bool = True,
        pooling: Pooling | None = None,
        flash_attention: int = -1,
        type_k: int = 1,
        type_v: int = 1,
        cut_seconds: float | None = None,
        abortable: bool = True,
    ) -> None: ...
    @property
    def n_threads(self) -> int:
        """The compute threads of the running step, or of the last one; with `adapt_threads`, `n_threads` at most."""

    @property
    def n_ctx(self) -> int:
        """The number of cells; 0 for a model without memory."""

    @property
    def n_seq_max(self) -> int: ...
    @property
    def n_batch(self) -> int: ...
    @property
    def n_text_max(self) -> int:
        """The limit of one text's tokens."""

    @property
    def n_embd(self) -> int:
        """The length of an embedding, or the number of a text's scores."""

    @property
    def n_cells_used(self) -> int: ...
    @property
    def pooling(self) -> Pooling: ...
    @property
    def splits(self) -> bool:
        """True if a text may be computed in several steps; otherwise it goes whole into one."""

    @property
    def memory_kind(self) -> MemoryKind: ...
    def open(self, seq: int, tokens: Sequence[int], flag: CancelFlag, *, adapters: Scales = ()) -> None:
        """Start a text on idle `seq`; UsageError for one that is empty, too long or not of the vocabulary.

        The texts of a step have the same LoRA adapters.
        """

    def close(self, seq: int) -> None:
        """Forget the text of `seq` and its cells. Idempotent."""

    def rest(self) -> None:
        """As `Context.rest`."""

    def step(
        self, items: Iterable[tuple[int, int] | StepItem], *, fixed_cost: float = 0.0, cost_per_token: float = 1.0
    ) -> EmbedResult:
        """Compute the next `n_tokens` tokens of each (seq, n_tokens), and pool; as `Context.step`."""

    def give_way(self, flag: CancelFlag) -> None:
        """Have the next step, whatever it computes, abort once `flag` is raised: others' requests come first."""

    def raise_at(self, poll: int, flag: CancelFlag) -> None:
        """For tests: raise `flag` at the given graph node, counted from 1, of the next step."""

    def n_committed(self, seq: int) -> int: ...
