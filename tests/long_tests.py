"""The tests that ``pytest`` alone leaves to ``pytest -m long``, and the representatives of them that it runs.

A key is a file of tests, or one test of it. Its value names the tests that stay in the short run: a function with all of
its cases, or one case with its brackets, in which `*` is any text. ``pytest -m ""`` runs everything.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from fnmatch import fnmatchcase

import pytest

LONG: dict[str, tuple[str, ...]] = {
    # Sweeps over chat templates, and over architectures.
    "tests/templates/test_matrix.py::test_nothing_is_refused_and_no_text_is_lost_or_moved": (
        "test_nothing_is_refused_and_no_text_is_lost_or_moved[google-gemma-2-2b-it-*]",
    ),
    "tests/native/test_chat_template.py::test_what_is_remembered_of_one_conversation_changes_no_other": (
        "test_what_is_remembered_of_one_conversation_changes_no_other[Qwen-Qwen3-0.6B]",
    ),
    "tests/architectures/test_sweep.py": (
        "test_a_cancel_at_any_node_disturbs_no_neighbour[llama-dense]",
        "test_the_sweep_stops_steps_in_the_middle[llama-dense]",
        "test_a_diffusion_model_is_refused_and_told_why",
    ),
    # Models of the protocols, which spin checks whole.
    "tests/model/test_cancel_protocol.py": ("test_a_broken_variant_is_caught[GLOBAL_FLAG]",),
    "tests/model/test_steps_ahead.py": ("test_a_broken_variant_is_caught[DEAF]",),
    # Each source of a cancel in each phase: attention is the memory that stays.
    "tests/races/test_cancel_matrix.py::test_a_cancel_ends_its_request_and_touches_no_other": (
        "test_a_cancel_ends_its_request_and_touches_no_other[*-1-attention]",
    ),
    # Engines that die in any call of the core.
    "tests/races/test_engine_dies_anywhere.py": (
        "test_an_engine_that_fails_in_its_last_calls_too_ends_every_request_once",
    ),
    # Other programs: clients, proxies, balancers, browsers, cables, compilers.
    "tests/clients/test_clients.py": ("test_a_client_calls_a_tool_streams_and_is_cancelled[openai]",),
    "tests/proxies/test_leaving.py": ("test_in_decode[*-stream-close]",),
    "tests/proxies/test_addresses.py": (),
    "tests/proxies/test_settings.py": (),
    "tests/proxies/test_litellm.py": (),
    "tests/network/test_pulled_cable.py": ("test_it_is_noticed_in_time[in_decode-stream]",),
    "tests/ray/test_death.py": (),
    "tests/cluster/test_death.py": (),
    "tests/cluster/test_up.py": (
        "test_what_makes_no_sense_is_told_before_anything_is_started",
        "test_at_a_signal_what_is_live_gets_its_end_and_nothing_is_left",
    ),
    "tests/cluster/test_scaling.py": (),
    "tests/cluster/test_owners.py": (),
    "tests/cluster/test_leaving.py": (),
    "tests/browser/test_layout.py": ("test_what_does_not_fit_and_what_nobody_can_use_is_found",),
    "tests/browser/test_other_pages.py": ("test_a_page_of_another_cancels_nothing",),
    "tests/browser/test_replicas.py": (),
    "tests/browser/test_connection.py": (),
    "tests/browser/test_engine.py": ("test_a_click_cancels_that_request_and_no_other",),
    "tests/browser/test_key.py": (),
    "tests/browser/test_typing.py": ("test_each_key_supersedes_the_one_before_and_tab_accepts_the_newest",),
    "tests/packaging/test_probe.py": ("test_the_probe_compiles_against_the_core[sampling_cost.cpp]",),
    # Servers that start, are killed or wait, each in a process of its own.
    "tests/http/test_forced_calls.py": ("test_a_call_can_be_forced[packaged-required-*]",),
    "tests/http/test_first_requests.py": (),
    "tests/http/test_hub_serving.py": ("test_while_the_model_comes_health_says_so_and_then_it_is_served",),
    "tests/http/test_full_disk.py": ("test_the_server_answers_and_ends_though_nothing_can_be_logged[closed]",),
    "tests/http/test_engine_death.py": ("test_every_client_gets_an_answer_and_the_process_ends_with_1",),
    "tests/http/test_replay.py::test_a_client_is_served_as_it_is": (
        "test_a_client_is_served_as_it_is[openai *]",
        "test_a_client_is_served_as_it_is[claude_code *]",
        "test_a_client_is_served_as_it_is[llama_vim *]",
    ),
    "tests/http/test_storm.py": (),
}


def mark_long_tests(items: Iterable[pytest.Item], *, whole_files: bool) -> None:
    """Mark the tests that `LONG` names.

    Parameters
    ----------
    whole_files
        Every file in `items` was collected whole, so that a name which is not in it is a mistake in the table.
    """
    unseen = {(key, name) for key, names in LONG.items() for name in (None, *names)}
    files = set[str]()
    for item in items:
        file, _, case = item.nodeid.partition("::")
        files.add(file)
        for key in {file, item.nodeid.partition("[")[0]} & LONG.keys():
            stays = {name for name in LONG[key] if is_of(case, name)}
            unseen -= {(key, name) for name in (None, *stays)}
            if not stays:
                item.add_marker(pytest.mark.long)
    wrong = sorted(f"{key} {name or ''}" for key, name in unseen if key.partition("::")[0] in files)
    if whole_files and wrong:
        raise pytest.UsageError(f"tests/long_tests.py names tests that are not there: {', '.join(wrong)}")


def is_of(case: str, name: str) -> bool:
    """Return whether a test of a file is one of those that `name` means."""
    return case.partition("[")[0] == name or fnmatchcase(case, name.replace("[", "[[]"))
