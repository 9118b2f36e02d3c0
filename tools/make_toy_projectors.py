"""Write random projectors of several kinds, and small random text models that go with them, to compare and test with.

    python tools/make_toy_projectors.py build/projectors

They say nothing sensible, but the same as ``llama-mtmd-cli`` says with them.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.support.media_files import noise_wav
from tests.support.toy_projectors import PAIRS, SOUND_PAIRS, noise_png, write_pair


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    for name in PAIRS | SOUND_PAIRS:
        text, projector = write_pair(folder, name)
        sys.stdout.write(f"{text} {projector}\n")
    for name, content in (("picture.png", noise_png(100, 60, seed=1)), ("sound.wav", noise_wav(3, seed=1))):
        (folder / name).write_bytes(content)
        sys.stdout.write(f"{folder / name}\n")


if __name__ == "__main__":
    main()
