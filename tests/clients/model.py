"""A copy of the packaged model with a context that agents' prompts fit into, and answers that go on."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gguf import GGUFReader

from tests.support.http_process import ServerProcess

PACKAGED_MODEL = Path(__file__).parents[2] / "pyllmcancel" / "models" / "stdlib-coder.gguf"
CONTEXT = 65_536
TEMPLATE = Path(__file__).parent / "last_turns.jinja"
# The installed package and not the checkout's sources; and a store of its own.
ENVIRONMENT = {"PYTHONSAFEPATH": "1", "PYLLMCANCEL_STORE": "memory"}
ENDS = (0, 2)  # <|endoftext|> and <|im_end|>


def write_patient_model(path: Path) -> Path:
    """Write the copy.

    The embeddings of the tokens that end an answer are zero, and with them their logits: such a token is sampled only
    where a grammar forbids all others. So an answer without a schema goes on until its client leaves.
    """
    shutil.copy(PACKAGED_MODEL, path)
    reader = GGUFReader(path, "r+")
    length = reader.fields["llama.context_length"]
    length.parts[length.data[0]][0] = CONTEXT
    embeddings = next(tensor for tensor in reader.tensors if tensor.name == "token_embd.weight")
    for token in ENDS:
        embeddings.data[token] = 0
    reader.data.flush()
    return path


@contextmanager
def serving(folder: Path, *options: str, whole_prompts: bool = False) -> Iterator[ServerProcess]:
    """A server with the copy, which is written into `folder`."""
    model = write_patient_model(folder / "stdlib-coder.gguf")
    template = () if whole_prompts else ("--chat-template-file", str(TEMPLATE))
    asked = ("--model", str(model), "--ctx-size", str(CONTEXT), *template, *options)
    with ServerProcess(*asked, environment=ENVIRONMENT) as server:
        yield server.started()
