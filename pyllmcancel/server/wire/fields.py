"""The parts of the bodies and the answers of all dialects.

A request's body is a pydantic model. An answer is a plain dictionary, which is sent as it is: its `TypedDict` lets mypy
check the code that builds it, and describes it on the OpenAPI page.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NotRequired

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    PrivateAttr,
    StrictBool,
    StrictInt,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WithJsonSchema,
    WrapValidator,
    model_validator,
    with_config,
)
from pydantic.aliases import AliasChoices
from pydantic.fields import FieldInfo
from typing_extensions import TypedDict

from pyllmcancel.events import Limit
from pyllmcancel.requests.params import REPETITION_LIMIT
from pyllmcancel.requests.request import IDLE
from pyllmcancel.sampling import SAMPLERS, SAMPLERS_ON_REQUEST
from pyllmcancel.server.limits import MAX_NAME, MAX_SESSION_ID, MAX_STOP

if TYPE_CHECKING:
    from pyllmcancel.engine.engine import Engine
    from pyllmcancel.events import Delta

# Set in a validation's context: empty values are validated as they were sent.
AS_SENT = object()

MAX_TIMEOUT = 7 * 86_400.0  # seconds
MAX_MS = 7 * 86_400_000
MAX_REPETITION = 10_000  # tokens

TokenId = Annotated[StrictInt, Field(ge=0, lt=2**31)]
Name = Annotated[str, Field(max_length=MAX_NAME)]
Stop = Annotated[str, Field(max_length=MAX_STOP)]
GroupName = Annotated[str, Field(min_length=1, max_length=MAX_SESSION_ID)]
Seconds = Annotated[float, Field(gt=0, le=MAX_TIMEOUT)]
# Several clients send this in single parts of a message.
CacheHint = Annotated[Any, Field(description="Without effect: any cached prefix is used.")]

# Our own fields, by the spellings that clients use.
SAMPLER_NAMES = {"nucleus": "top_p", "temp": "temperature", "typ": "typ_p", "typical_p": "typ_p"} | {
    spelling: name
    for name in (*SAMPLERS, *SAMPLERS_ON_REQUEST)
    for spelling in (name, name.replace("_", "-"), name.replace("_", ""))
}
# Names in SamplingParams by names on the wire, where the two differ.
RENAMED = {"repeat_last_n": "penalty_last_n", "post_sampling_probs": "logprobs_after_sampling"}


def absent(description: str | None = None) -> Any:
    """Annotate a field that is left out rather than null; clients may read absence as null."""
    return Field(default=None, description=description)


def optional(
    description: str, least: float | None = None, most: float | None = None, *, default: Any = None, **more: Any
) -> Any:
    """Describe a field that may be left out, or null. A number is between these two, both included."""
    return Field(default, ge=least, le=most, description=description, **more)


ABSENT = absent()
BATCH_INVARIANT = Field(description="True if an answer depends on its own request only, to the last bit.")


@with_config(ConfigDict(extra="forbid"))
class Answer(TypedDict):
    """The base of all answers: an answer has no undescribed field."""


class StopDetails(Answer):
    stop_details: NotRequired[Annotated[Literal["repetition"] | None, ABSENT]]


def stop_details(delta: Delta) -> StopDetails:
    """Return the reason of an answer's end that its finish reason does not tell."""
    return {"stop_details": "repetition"} if delta.limit is Limit.REPETITION else {}


class Sent(BaseModel):
    """The base of everything that clients send: bodies, and the objects inside them.

    Clients spell "not given" as null, and as an empty text, list or object where the field has no such value. Such a
    field is removed first, so that it has its default, and a required one is missing.
    """

    # Optional fields for which null has another meaning than absence.
    null_says: ClassVar[frozenset[str]] = frozenset()

    @model_validator(mode="before")
    @classmethod
    def _only_given(cls, sent: Any, info: ValidationInfo) -> Any:
        if not isinstance(sent, dict) or info.context is AS_SENT:
            return sent
        return {name: value for name, value in sent.items() if cls._is_given(name, value)}

    @classmethod
    def _is_given(cls, name: str, value: object) -> bool:
        if value is None:
            return name in cls.null_says
        return value not in ("", [], {}) or name not in wire_fields(cls) or takes_empty(cls, name, type(value))


def kind_of(sent: Any) -> str | None:
    """Return the type of an object, as it was sent or once it is validated; None if it names none."""
    kind = sent.get("type") if isinstance(sent, dict) else getattr(sent, "type", None)
    return kind if isinstance(kind, str) else None


def text_or(parts: str) -> Discriminator:
    """Tell texts from lists, by their tags. The form is known first, so that an error is about the one that was
    meant.
    """
    return Discriminator(lambda content: "text" if isinstance(content, str) else parts)


def of_known_types(what: str, is_known: Callable[[str], object], supported: str = "") -> BeforeValidator:
    """Refuse objects of other types in words: pydantic's own error would list every type that an object is not."""

    def check(sent: Any) -> Any:
        for one in sent if isinstance(sent, list) else [sent]:
            kind = kind_of(one)
            if kind and not is_known(kind):
                raise ValueError(f"{what} of type {kind[:100]!r} is not supported{supported}")
        return sent

    return BeforeValidator(check)


@cache
def takes_empty(model: type[BaseModel], name: str, kind: type[object]) -> bool:
    """Return whether an empty text, list or object is a value of this field. A required field keeps the value that was
    sent.

    The model itself decides: a schema of the field's own would be built while a request waits.
    """
    field = wire_fields(model)[name]
    if field.is_required():
        return True
    try:
        model.model_validate({name: kind()}, context=AS_SENT)
    except ValidationError as error:
        places = [one["loc"] for one in error.errors(include_url=False, include_context=False)]
        return not any(place and wire_fields(model).get(str(place[0])) is field for place in places)
    return True


@cache
def wire_fields(model: type[BaseModel]) -> Mapping[str, FieldInfo]:
    """A model's fields, by every name that a client may give them."""
    found = {}
    for name, field in model.model_fields.items():
        alias = field.validation_alias
        names = alias.choices if isinstance(alias, AliasChoices) else [alias or name]
        found.update({str(one): field for one in names})
    return found


class RequestBody(Sent):
    """The base of all bodies. It keeps unknown fields, which `unknown_fields` then handles.

    Lists have `fail_fast`: one error is reported, not one for each of a hundred thousand wrong entries.
    """

    model_config = ConfigDict(extra="allow")
    # Unknown fields of this body that are refused, with the values that ask for nothing.
    refused_fields: ClassVar[Mapping[str, tuple[Any, ...]]] = {}

    _ignore: Callable[[str], None] | None = PrivateAttr(None)  # set once, by the reader of the body

    def check(self, engine: Engine) -> None:
        """Raise InvalidRequestError for fields that contradict each other, or that the engine cannot serve."""

    def ignore(self, field: str) -> None:
        """Note that a field has no effect; ApiError if such fields are refused."""
        if self._ignore is not None:
            self._ignore(field)


def idle_or(value: Any, number: ValidatorFunctionWrapHandler) -> int:
    """Return the number of a priority."""
    priority: int = IDLE if value == "idle" else number(value)
    return priority


PRIORITIES = {"type": "integer", "minimum": -(2**31), "maximum": 2**31 - 1}
Priority = Annotated[
    Annotated[StrictInt, Field(ge=-(2**31), lt=2**31)],
    WrapValidator(idle_or),
    WithJsonSchema({"anyOf": [PRIORITIES, {"const": "idle"}]}),
]


class GeneratingBody(RequestBody):
    """The base of bodies that generate: the request's groups, and the form of its answer."""

    # Requests of different classes never supersede each other, unless they name a key; requests without a class never
    # do.
    request_class: ClassVar[str | None] = None

    model: Name | None = optional("Any name is served; the answer names the model that generated it.")
    stream: bool = False
    session_id: GroupName | None = optional(
        "Ours: the group that the request belongs to; a session's cancel ends all its live requests."
    )
    parent_session_id: GroupName | None = optional(
        "Ours: the session whose child `session_id` is; a cancel of the parent reaches it, too."
    )
    supersede: GroupName | None = optional(
        "Ours: a key under which at most one request lives; the newest cancels the older one."
    )
    priority: Priority = optional(
        "Ours: -1 for background work, 1 for requests that a user waits for, or any other integer; compared among"
        " requests of the same API key. The highest is first, with `--low-priority-first` the lowest. `idle`: the"
        " request computes only while no others do, whatever their key.",
        default=0,
    )
    prefetch: StrictBool = optional(
        "Ours: computes the prompt only, as an idle request, and keeps it for a later request.", default=False
    )
    timeout: Seconds | None = optional("Ours: deadline in seconds, time in the queue included.")
    queue_timeout: Seconds | None = optional("Ours: seconds in which the request must get a slot.")
    idle_timeout: Seconds | None = optional("Ours: seconds of silence between two tokens that end the request.")
    repetition_limit: StrictBool | Annotated[StrictInt, Field(ge=0, le=MAX_REPETITION)] | None = optional(
        "Ours: ends an answer whose last tokens, this number of them and four periods at least, repeat themselves;"
        f" true: {REPETITION_LIMIT}; 0 or false: never."
    )
    keep_going: StrictBool | Seconds | None = optional(
        "Ours: the stream goes on when its client leaves, and can be taken up by `GET /v1/stream/{request id}`;"
        " a number limits the seconds without a reader."
    )
    user: Name | None = None
    safety_identifier: Name | None = None
    prompt_cache_key: Name | None = optional("As `session_id`, if that is not given.", min_length=1)

    @property
    def only_warms(self) -> bool:
        """True if nothing is to be generated: the prompt is computed for the cache."""
        return False

    @property
    def runs_alone(self) -> bool:
        """True if the answer goes on in any case when its client leaves."""
        return False

    @property
    def end_user(self) -> str | None:
        """The client's own user, for ``--supersede user``."""
        return self.user or self.safety_identifier
