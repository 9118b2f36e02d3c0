"""Which layers of the tests' models a device computes: none, unless ``PYLLMCANCEL_TEST_LAYERS`` says otherwise.

``all`` are all of them, ``half`` the last ones with the output: the rest is the CPU's, and both compute every step.
What holds on the CPU must hold there. Bits are compared with bits of the same device: a test loads all models alike.
"""

import os
from pathlib import Path
from typing import Any

from gguf import GGUFReader

from pyllmcancel._native import Model

LAYERS = os.environ.get("PYLLMCANCEL_TEST_LAYERS", "none")
ON_DEVICE = LAYERS != "none"
# tools/test_vulkan.py sets this for a device that corrupts the heap if a model has experts, and says why.
IS_UNSOUND = ON_DEVICE and "GGML_VK_DISABLE_FUSION" in os.environ
# A device that is the processor takes a second for what the CPU's back end does in a hundredth.
FEWER = 20 if ON_DEVICE else 1
# A device's kernels depend on how many tokens a step has: two logits that are less than this apart may change places.
NEAR_TIE = 0.05 if ON_DEVICE else 0.0
# Options of a context: its graphs are cut after each node; each of its steps can be stopped at any node.
EVERY_NODE = {"cut_seconds": 0.0}
STOPPABLE = EVERY_NODE if ON_DEVICE else {}


def n_gpu_layers(path: Path) -> int:
    """How many layers of a model go to the device, as ``-ngl`` counts them: the output is one, and goes first."""
    if LAYERS != "half":
        return {"none": 0, "all": -1}[LAYERS]
    fields = GGUFReader(path).fields
    arch = fields["general.architecture"].contents()
    return int(fields[f"{arch}.block_count"].contents()) // 2 + 1


def load_model(path: Path, **options: Any) -> Model:
    """Load a model onto the tests' device."""
    return Model.load(path, n_gpu_layers=n_gpu_layers(path), **options)
