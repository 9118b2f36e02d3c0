"""Models come and go, and a device keeps nothing of them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.device import n_gpu_layers

N_WARM = 10  # after which drivers and allocators have what they keep
N_LOADS = 50

LOADING = """
import ctypes, gc, json, os, sys
from pathlib import Path
from pyllmcancel._native import CancelFlag, Context, Model, Sampler
from pyllmcancel.sampling import SamplingParams
from pyllmcancel.step import StepStatus

path, n_gpu_layers, n_warm, n_loads = sys.argv[1], *map(int, sys.argv[2:])

def use() -> None:
    model = Model.load(path, n_gpu_layers=n_gpu_layers)
    context = Context(model, n_ctx=512, n_seq_max=1, n_batch=64, n_threads=1, cut_seconds=0.0)
    for seconds in range(2):
        flag = CancelFlag()
        context.open(0, list(range(5, 45)), Sampler(model, SamplingParams(temperature=0.0)), flag)
        if seconds:
            context.raise_at(20, flag)
        expected = StepStatus.ABORTED if seconds else StepStatus.OK
        assert context.step([(0, 40)], fixed_cost=-1.0, cost_per_token=0.0).status is expected
        context.close(0, keep=False)

def held() -> dict[str, int]:
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    lists = {name: len(os.listdir(f"/proc/self/{name}")) for name in ("fd", "task")}
    return lists | {"bytes": pages * os.sysconf("SC_PAGESIZE")}

found = []
for number in range(n_loads):
    use()
    if number + 1 in (1, n_warm, n_loads):
        found.append(held())
json.dump(found, sys.stdout)
"""


@pytest.mark.timeout(900)
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the system does not say what a process holds")
def test_fifty_models_leave_no_threads_files_or_memory_behind(model_files: dict[str, Path]) -> None:
    """In a process of its own. Each computes one step, and is stopped in the middle of another."""
    path = model_files["attention"]
    numbers = [str(number) for number in (n_gpu_layers(path), N_WARM, N_LOADS)]
    command = [sys.executable, "-c", LOADING, str(path), *numbers]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    first, warm, last = json.loads(done.stdout)
    # The threads of Mesa's processor are started once; ggml gives a device back to nobody.
    assert {name: last[name] for name in ("fd", "task")} == {name: first[name] for name in ("fd", "task")}
    assert last["bytes"] - warm["bytes"] < (N_LOADS - N_WARM) * path.stat().st_size / 8
