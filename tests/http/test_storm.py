"""The storm, in short: clients on raw sockets who leave and cancel in every way, beside others who must not notice.

``python -m bench.scenarios storm`` has twenty thousand requests of the same kind.
"""

import asyncio
from pathlib import Path

import pytest

from bench.scenarios.harness import Bench
from bench.scenarios.report import Report
from bench.scenarios.storm.exact import write_exact_copy
from bench.scenarios.storm.storm import SETTINGS, Setting
from bench.scenarios.storming import storm
from pyllmcancel.models import packaged_model_path

pytestmark = pytest.mark.long

N_REQUESTS = {"divided cells": 160, "unified cells": 160, "embeddings": 60}
CLIENTS = 16


@pytest.mark.timeout(900)
@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_clients_that_stay_get_the_right_answer_and_every_request_ends_once(setting: Setting, tmp_path: Path) -> None:
    packaged = packaged_model_path()
    model = write_exact_copy(packaged, tmp_path / "exact.gguf") if setting.exact else packaged
    report, bench = Report("storm"), Bench(model=model, threads=1)
    asyncio.run(storm(bench, report, setting, N_REQUESTS[setting.name], clients=CLIENTS, allowed_mib=None))
    assert report.passed, str(report)
