"""The tests that ``pytest`` alone leaves to ``pytest -m long``, and the representatives of them that it runs.

A key is a file of this folder, or one test of it. Its value names the tests that stay in the short run: a function with
all of its cases, or one case, in which ``*`` is any text. ``pytest -m ""`` runs everything.
``python -m tests.long_tests`` prints the files.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

HERE = Path(__file__).parent
LONG: dict[str, tuple[str, ...]] = {
    "front/test_real_models.py": (),
    "front/test_real_replicas.py": ("test_an_id_in_use_is_refused_though_another_replica_is_free",),
    "front/test_replicas.py": (
        "test_eight_streams_without_names_take_four_slots_of_each",
        "test_a_rolling_restart_cuts_no_stream",
    ),
    "deploy/test_haproxy.py": ("test_owners_have_names_of_their_own",),
    "front/test_feed.py": ("test_the_feed_outlives_the_models_and_tells_their_states",),
    # Each starts processes.
    "front/test_cancels.py": (
        "test_a_running_request_is_superseded_by_one_of_another_model",
        "test_a_complete_answer_that_a_cancel_overtook_does_not_look_complete",
        "test_a_stuck_process_keeps_nobody_waiting",
        "test_a_request_whose_client_does_not_read_ends_all_the_same[newer]",
    ),
    "front/test_on_their_way.py": (
        "test_a_request_that_its_process_has_not_seen_is_cancelled[post]",
        "test_a_request_that_its_process_has_not_seen_is_listed",
        "test_an_older_request_whose_body_came_late_supersedes_no_newer_one",
        "test_only_a_process_behind_another_believes_it",
    ),
    "front/test_room.py": (
        "test_a_model_that_cannot_be_loaded_takes_no_other_ones_room",
        "test_a_log_that_cannot_be_read_leaves_no_model_hanging[a line]",
        "test_one_model_that_cannot_be_started_holds_up_no_other",
    ),
    "front/test_requests.py": (
        "test_a_request_reaches_the_model_that_it_names",
        "test_an_unknown_model_is_refused_with_those_there_are",
        "test_the_last_to_leave_a_load_ends_it",
        "test_a_request_that_waits_for_a_load_can_be_cancelled[session]",
        "test_owners_neither_see_nor_cancel_each_others_waiting_requests",
        "test_a_process_that_dies_ends_its_own_requests_only_and_comes_back",
        "test_a_model_that_computes_is_not_unloaded_for_another",
        "test_before_any_model_is_loaded_the_lists_are_empty",
    ),
    "http/test_sound_processes.py": (),
    # Each starts servers.
    "http/test_cache_disk.py": (
        "test_a_prompt_goes_on_where_it_was_after_a_kill",
        "test_a_second_server_runs_without_the_folder",
    ),
    "docs/test_snippets.py::test_benchmarks_run": (),
    "docs/test_site_build.py::test_the_site_is_built_without_a_warning_and_without_a_broken_link": (),
    # Sweeps over chat templates, and over architectures.
    "templates/test_matrix.py::test_nothing_is_refused_and_no_text_is_lost_or_moved": ("[google-gemma-2-2b-it-*]",),
    "native/test_chat_template.py::test_what_is_remembered_of_one_conversation_changes_no_other": (
        "[Qwen-Qwen3-0.6B]",
    ),
    "architectures/test_sweep.py": (
        "test_a_cancel_at_any_node_disturbs_no_neighbour[llama-dense]",
        "test_the_sweep_stops_steps_in_the_middle[llama-dense]",
        "test_a_diffusion_model_is_refused_and_told_why",
    ),
    "native/test_template_engine.py::test_every_template_is_rendered_as_transformers_does": ("[Qwen*]",),
    "native/test_chat_parser.py::test_a_spoiled_answer_has_the_same_parts_however_it_is_cut": (),
    "unit/test_chat_grammar.py::test_one_call_is_one_call": (
        "[*-Qwen*]",
        "[*-openai-gpt-oss-120b]",
    ),
    "unit/test_chat_grammar.py::test_names_and_numbers_around_an_answer_have_an_end": (
        "[*-Qwen*]",
        "[*-openai-gpt-oss-120b]",
    ),
    "unit/test_chat_grammar.py::test_a_call_that_is_required_has_no_free_text_before_it": (
        "[Qwen*]",
        "[openai-gpt-oss-120b]",
    ),
    "unit/test_tool_schemas.py::test_every_schema_has_a_grammar": ("[Qwen-Qwen3-0.6B]",),
    "unit/test_tool_schemas.py::test_all_that_a_grammar_allows_obeys_the_schema": ("[{'type': *]",),
    "http/test_strict_templates.py::test_every_dialect_is_served": ("[google-gemma-2-2b-it]",),
    # Models of the protocols, which spin checks whole.
    "model/test_cancel_protocol.py": ("test_a_broken_variant_is_caught[GLOBAL_FLAG]",),
    "model/test_steps_ahead.py": ("test_a_broken_variant_is_caught[DEAF]",),
    # Each source of a cancel in each phase: attention is the memory that stays.
    "races/test_cancel_matrix.py::test_a_cancel_ends_its_request_and_touches_no_other": ("[*-1-attention]",),
    "races/test_drafted_answers_are_the_same.py": ("[1]",),
    "races/test_state_machine.py": ("TestFewEngineSchedules::runTest",),
    "races/test_real_engine.py::test_two_hundred_clients_that_leave_the_queue_do_not_touch_the_one_that_decodes": (
        "[*attention]",
    ),
    "races/test_real_engine.py::test_a_storm_of_cancels_from_many_threads_hits_its_targets_and_no_other_request": (
        "[*attention]",
    ),
    "races/test_real_engine.py::test_what_gives_way_to_another_owner_goes_on_with_the_same_tokens": ("[*attention]",),
    "races/test_real_engine.py::test_what_pauses_again_and_again_goes_on_with_the_same_tokens": ("[*attention]",),
    "races/test_real_engine.py::test_requests_of_one_session_at_once_get_the_tokens_they_get_alone": ("[*attention]",),
    # Many requests, bodies or schemas as large as they may be.
    "unit/test_owners.py::test_a_flood_of_one_owner_delays_anothers_first_token_by_two_steps_at_most": (
        "[10-attention]",
    ),
    "unit/test_owners.py::test_every_request_is_complete_in_the_end_and_preemption_ends": (),
    "unit/test_store_shares.py::test_a_flood_of_one_owner_costs_another_nothing": ("[False]",),
    "unit/test_bounded_guidance.py::test_what_is_too_much_or_makes_no_sense_is_the_requests_error": (
        "[a large divisor]",
        "[a billion times]",
    ),
    "unit/test_custom_input.py::test_it_is_told_however_it_is_cut": (),
    "http/test_bounded_input.py::test_a_schema_that_cannot_be_compiled_is_a_400_that_says_which": (
        "[fields0-json_schema]",
    ),
    "http/test_bounded_input.py::test_a_template_beyond_all_bounds_refuses_chats_only": ("[loops]",),
    "http/test_null_fields.py::test_a_request_of_nulls_asks_for_what_one_without_them_does": (
        "[/v1/completions]",
        "[/v1/chat/completions]",
    ),
    "http/test_field_table.py::test_fields_do_what_the_table_says": ("[chats-OpenAI]",),
    "http/test_openapi.py::test_every_example_of_the_page_runs_and_is_answered_as_described": ("[/v1/completions-*]",),
    "http/test_openapi.py::test_refusals_are_answered_as_described": ("[/v1/completions]",),
    # Engines that die in any call of the core.
    "races/test_engine_dies_anywhere.py": ("test_an_engine_that_fails_in_its_last_calls_too_ends_every_request_once",),
    # Other programs: clients, proxies, balancers, browsers, cables, compilers.
    "clients/test_clients.py": ("test_a_client_calls_a_tool_streams_and_is_cancelled[openai]",),
    "clients/test_looking.py": (),
    "proxies/test_leaving.py": ("test_in_decode[*-stream-close]",),
    "proxies/test_addresses.py": (),
    "proxies/test_settings.py": (),
    "proxies/test_litellm.py": (),
    "network/test_pulled_cable.py": ("test_it_is_noticed_in_time[in_decode-stream]",),
    "ray/test_cluster.py": (),
    "browser/test_layout.py": ("test_what_does_not_fit_and_what_nobody_can_use_is_found",),
    "browser/test_cross_origin_pages.py": ("test_a_page_of_another_cancels_nothing",),
    "browser/test_models.py": (),
    "browser/test_connection.py": (),
    "browser/test_engine.py": ("test_a_click_cancels_that_request_and_no_other",),
    "browser/test_key.py": (),
    "browser/test_typing.py": ("test_each_key_supersedes_the_one_before_and_tab_accepts_the_newest",),
    "packaging/test_probe.py": ("test_the_probe_compiles_against_the_core[step_driver.cpp]",),
    # Servers that start, are killed or wait, each in a process of its own.
    "http/test_forced_calls.py": ("test_a_call_can_be_forced[packaged-required-*]",),
    "http/test_first_requests.py": (),
    "http/test_hub_serving.py": ("test_while_the_model_comes_health_says_so_and_then_it_is_served",),
    "http/test_full_disk.py": ("test_the_server_answers_and_ends_though_nothing_can_be_logged[closed]",),
    "http/test_engine_death.py": ("test_every_client_gets_an_answer_and_the_process_ends_with_1",),
    "http/test_replay.py::test_a_client_is_served_as_it_is": (
        "[openai *]",
        "[claude_code *]",
        "[llama_vim *]",
    ),
    "http/test_storm.py": (),
    "http/test_signals_in_every_phase.py": ("test_while_it_serves[SIGTERM-decode]",),
    "http/test_signals.py": (
        "test_what_is_live_gets_its_proper_ending_and_the_process_is_gone[15]",
        "test_the_servers_of_these_tests_take_sigint_in_a_background_job_too",
    ),
    "http/test_stalled_readers.py": ("test_one_that_stops_at_the_first_byte_is_cancelled_as_stalled",),
    "http/test_responses_process.py": ("test_a_drain_lets_it_finish",),
    "http/test_slow_clients.py": (
        "test_half_a_request_is_waited_for_no_longer_than_its_time[head]",
        "test_a_connection_that_brings_nothing_is_closed",
    ),
    "http/test_trusted_proxies.py::test_the_address_of_a_client": ("[proxies0-10.0.0.5-127.0.0.1]",),
    "http/test_tls.py": ("test_it_serves",),
    "http/test_langchain.py": ("test_a_stream_that_is_left_is_cancelled",),
    "http/test_logs.py::test_all_that_a_server_writes_is_in_the_form_that_was_asked_for": ("[json]",),
    "http/test_tracing.py::test_a_server_whose_collector_is_not_there_serves_and_ends": (),
    "http/test_startup.py::test_a_full_collection_while_serving_does_not_walk_over_what_was_imported": (),
    "bench/test_command.py::test_it_measures_a_real_server": (),
    "packaging/test_stub.py::test_the_stub_matches_the_module": (),
}


def mark_long_tests(items: Iterable[pytest.Item], *, whole_files: bool) -> None:
    """Mark the tests that `LONG` names.

    Parameters
    ----------
    whole_files
        Every file in `items` was collected whole, so that a name which is not in it is a mistake in the table.
    """
    unseen = {(key, name) for key, names in LONG.items() for name in (None, *names)}
    files = {file for file in (key.partition("::")[0] for key in LONG) if not (HERE / file).exists()}
    for item in items:
        file, _, case = item.nodeid.removeprefix("tests/").partition("::")
        function, bracket, values = case.partition("[")
        files.add(file)
        for key in {file, f"{file}::{function}"} & LONG.keys():
            stays = {name for name in LONG[key] if is_meant(name, {function, case, bracket + values})}
            unseen -= {(key, name) for name in (None, *stays)}
            if not stays:
                item.add_marker(pytest.mark.long)
    wrong = sorted(f"{key} {name or ''}" for key, name in unseen if key.partition("::")[0] in files)
    if whole_files and wrong:
        raise pytest.UsageError(f"tests/long_tests.py names tests that are not there: {', '.join(wrong)}")


def is_meant(name: str, forms: Iterable[str]) -> bool:
    """Return whether a name of the table matches a test, which has several forms of a name."""
    return any(fnmatchcase(form, name.replace("[", "[[]")) for form in forms)


if __name__ == "__main__":
    sys.stdout.writelines(sorted({f"tests/{key.partition('::')[0]}\n" for key in LONG}))
