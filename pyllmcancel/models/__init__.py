"""The small model in the package, with which the server runs without any other file.

`MODEL_CARD.md` beside this file describes its training and its abilities.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

PACKAGED_NAME = "stdlib-coder"
PACKAGED_MODEL = f"{PACKAGED_NAME}.gguf"


def packaged_model_path() -> Path:
    """Return the path of the packaged model.

    Returns
    -------
    pathlib.Path
        A GGUF file, which can be mapped into memory, because wheels are installed unpacked.

    Raises
    ------
    FileNotFoundError
        If the package was imported from an archive or installed without its data.
    """
    path = Path(str(files(__name__) / PACKAGED_MODEL))
    if not path.is_file():
        raise FileNotFoundError(f"the packaged model is missing: {path}")
    return path
