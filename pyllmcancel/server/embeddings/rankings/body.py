"""The body of ``/v1/rerank``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field, StrictStr

from pyllmcancel.embeddings.request import MAX_TEXTS
from pyllmcancel.errors import InvalidRequestError
from pyllmcancel.server.embeddings.body import WholeBody
from pyllmcancel.server.wire.fields import Sent, between
from pyllmcancel.server.wire.sampling import MAX_INT

MANY: Any = Field(min_length=1, max_length=MAX_TEXTS, fail_fast=True)


class Document(Sent):
    """A document with fields of its client's, of which the text is ranked."""

    model_config = ConfigDict(extra="ignore")

    text: StrictStr


class RankBody(WholeBody):
    """The body of ``POST /v1/rerank``. With `documents` the answer has Jina's form, with `texts` it has TEI's."""

    # The text is ranked, whatever other fields an object has.
    refused_fields: ClassVar[Mapping[str, tuple[Any, ...]]] = {"rank_fields": (["text"],)}

    query: StrictStr = Field(min_length=1, examples=["What is a panda?"])
    documents: Annotated[list[StrictStr | Document], MANY] | None = Field(
        None,
        description=f"Texts, or objects with a `text`; at most {MAX_TEXTS:,}.",
        examples=[["The giant panda is a bear.", "Paris is a city."]],
    )
    texts: Annotated[list[StrictStr], MANY] | None = Field(None, description="TEI's `documents`.")
    top_n: int | None = Field(None, ge=1, description="Number of documents in the answer, the best ones; null: all.")
    return_documents: bool = Field(False, description="Jina's: repeat each document in the answer.")
    return_text: bool = Field(False, description="TEI's: repeat each text in the answer.")
    raw_scores: bool | None = Field(
        None,
        description="TEI's. false: scores between 0 and 1, the logistic function of the model's own. true and null: the"
        " model's own, as in llama-server.",
    )
    max_tokens_per_doc: int | None = Field(None, ge=1, description="Cohere's: cut documents after this many tokens.")
    truncate_prompt_tokens: int | None = between(
        -1, MAX_INT, "vLLM's: cut documents so that the query and one have this number of tokens; -1: as many as fit."
    )
    truncate: bool = Field(
        False, description="TEI's: cut documents that are too long for the model, instead of refusing the request."
    )
    truncation_direction: Literal["left", "right", "Left", "Right"] = Field(
        "right", description="TEI's: the side on which documents are cut."
    )

    @property
    def cuts(self) -> bool:
        """True if documents are cut, not refused, if they are too long."""
        return self.truncate or self.max_tokens_per_doc is not None or self.truncate_prompt_tokens is not None

    @property
    def documents_field(self) -> str:
        """The field that the documents are in."""
        return "documents" if self.texts is None else "texts"

    def ranked(self) -> list[str]:
        """Return the texts to rank; InvalidRequestError if there are none, or two lists of them."""
        if self.documents is not None and self.texts is not None:
            raise InvalidRequestError("documents and texts exclude each other", "texts")
        given = self.documents or self.texts
        if given is None:
            raise InvalidRequestError("documents are missing: a list of texts", "documents")
        return [one.text if isinstance(one, Document) else one for one in given]
