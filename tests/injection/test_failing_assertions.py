"""An assertion of ggml that fails in the midst of a step ends the process, and not before every request has ended."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

LIMIT = 60.0

# Prints each ending, at once: what comes after the abort does not come.
ENGINE = """
import sys
from pathlib import Path
from tests.injection.shared_steps import NATIVE, PROMPTS, SharedSteps

shared = SharedSteps.load(Path(sys.argv[1]))
NATIVE.set_fault("decode", int(sys.argv[2]), 1002)
for _, sink in [shared.submit(prompt) for prompt in PROMPTS]:
    ending = sink.ending()
    print(ending.finish_reason.name, ending.error, flush=True)
died_of = shared.engine.stopped.exception(60.0)
print(type(died_of).__name__, flush=True)
shared.engine.close()
print("not reached", flush=True)
"""


@pytest.mark.parametrize("nth", [1, 4])
def test_the_requests_of_a_process_that_aborts_end_before_it_does(model_files: dict[str, Path], nth: int) -> None:
    command = [sys.executable, "-P", "-c", ENGINE, str(model_files["attention"]), str(nth)]
    # The package and these tests, from where this process has them.
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert done.returncode == -signal.SIGABRT, done.stderr
    *endings, died_of = done.stdout.splitlines()
    assert len(endings) == 3
    assert all(line.startswith("ERROR the engine died: ") and "the device is lost" in line for line in endings)
    assert died_of == "CoreAbortedError"
