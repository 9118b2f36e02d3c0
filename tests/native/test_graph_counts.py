"""The graphs of a step do not grow with its clients, and are used again: what a GPU's speed with many clients needs."""

from pathlib import Path

import pytest

from bench.gpu.graphs import counts
from pyllmcancel._native import Model
from tests.support.tiny_models import write_tiny_hybrid, write_tiny_llama

CLIENTS = (2, 5, 8)


@pytest.fixture(scope="module", params=[write_tiny_llama, write_tiny_hybrid], ids=["attention", "hybrid"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    path = tmp_path_factory.mktemp("models") / "tiny.gguf"
    request.param(path)
    return Model.load(path)


@pytest.mark.parametrize("unified", [True, False], ids=["unified", "divided"])
def test_a_step_is_one_graph_however_many_clients_it_has(model: Model, unified: bool) -> None:
    alone = counts(model, 1, unified=unified)
    assert alone["nodes"] > 0
    for n_clients in CLIENTS:
        found = counts(model, n_clients, unified=unified)
        assert all(found[name] == alone[name] for name in ("nodes", "splits", "copies"))
        assert found["reused"] > 0.5


def test_unified_cells_need_no_second_graph_where_a_client_has_left(model: Model) -> None:
    assert counts(model, 4, unified=True, gap=True)["nodes"] == counts(model, 1, unified=True)["nodes"]


def test_divided_cells_need_a_graph_for_each_run_of_sequences(tmp_path: Path) -> None:
    """One client between the others has left; docs/measured/gpu.md says what that costs."""
    path = tmp_path / "tiny.gguf"
    write_tiny_llama(path)
    model = Model.load(path)
    found = counts(model, 4, unified=False, gap=True)
    assert found["nodes"] == 2 * counts(model, 4, unified=False)["nodes"]
