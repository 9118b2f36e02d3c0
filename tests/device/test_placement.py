"""A device computes what the other tests take for computed by it. Without these they would pass on the CPU as well."""

from pathlib import Path

import numpy as np

from pyllmcancel._native import CancelFlag, Context, Model, Sampler, devices
from pyllmcancel.sampling import SamplingParams
from pyllmcancel.step import StepStatus
from tests.architectures.sweep import nmse
from tests.support.device import LAYERS, load_model
from tests.support.threads import N_THREADS

# Fewer tokens than llama.cpp gives to a device for layers that are the CPU's.
PROMPT = [(7 * n + 3) % 900 for n in range(20)]
WITH_OUTPUT = 5


def computed(model: Model) -> np.ndarray:
    context = Context(model, n_ctx=512, n_seq_max=1, n_batch=64, n_threads=N_THREADS)
    context.open(0, PROMPT, Sampler(model, SamplingParams(temperature=0.0)), CancelFlag())
    assert context.step([(0, len(PROMPT))]).status is StepStatus.OK
    return context.logits(0).copy()


def test_the_device_is_mesas_processor() -> None:
    (device,) = devices()
    assert "llvmpipe" in device.description


def test_layers_lie_where_they_should(model_file: Path) -> None:
    (device,) = devices()
    expected = {device.name: WITH_OUTPUT} if LAYERS == "all" else {"CPU": 2, device.name: WITH_OUTPUT - 2}
    model = load_model(model_file)
    assert model.layers_by_device == expected
    assert model.is_offloaded


def test_the_device_computes_what_the_cpu_computes_but_for_the_last_bits(model_file: Path) -> None:
    on_cpu = computed(Model.load(model_file))
    assert 0.0 < nmse(computed(load_model(model_file)), on_cpu) < 1e-3
