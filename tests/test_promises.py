"""The test behind each promise of docs/exact.md: each row of its table has tests that exist, or is known to have none."""

from __future__ import annotations

import re

from tests.conftest import ROOT

PROMISES = {
    "no restart: two runs with the same settings": ("test_a_run_that_its_engine_takes_away_and_starts_again_loses_no_step",),
    "all tasks are killed at once": ("test_a_training_continues_with_its_snapshot_in_memory",),
    "weights, optimizer (SGD with momentum, AdamW), learning rate,": (
        "test_a_loop_that_is_killed_twice_ends_as_without",
        "test_fit_that_is_killed_twice_ends_as_without",
    ),
    "other optimizers of a Keras 3 model, also those that its first": (
        "test_a_gan_whose_optimizers_are_built_in_its_first_step_ends_as_without",
    ),
    "dropout and other layers with a `SeedGenerator`; `keras.random`": (
        "test_a_loop_that_is_killed_twice_ends_as_without",
        "test_fit_that_is_killed_twice_ends_as_without",
        "test_generators_go_on",
    ),
    "`BatchNormalization`: each worker's own statistics": (
        "test_a_loop_that_is_killed_twice_ends_as_without",
        "test_fit_that_is_killed_twice_ends_as_without",
        "test_generators_go_on",
    ),
    "the states of `stateful` layers of Keras 3, and a `tf.Variable` that": (
        "test_the_callback_continues_in_one_process_and_by_tensorflows_file_systems",
    ),
    "a dataset that shuffles, with a seed or without": (
        "test_a_loop_that_is_killed_twice_ends_as_without",
        "test_fit_that_is_killed_twice_ends_as_without",
    ),
    "a shuffle before `repeat(2)`, `cache` or `concatenate`": ("test_shuffles_within_an_epoch_come_in_the_same_order",),
    "arrays that `fit` shuffles; `steps_per_epoch` with data": ("test_fit_that_is_killed_twice_ends_as_without",),
    "validation data that shuffle": ("test_the_callback_continues_in_one_process_and_by_tensorflows_file_systems",),
    "`History`, `EarlyStopping`, `ReduceLROnPlateau`": ("test_fit_that_is_killed_twice_ends_as_without",),
    "the arguments of callbacks, such as the path of": ("test_only_what_the_training_has_changed_is_restored",),
    "the global generators of Python and NumPy": ("test_generators_go_on",),
    "`worker.files(start=saver.steps)`": ("test_files_begin_where_the_saver_is",),
    "a checkpoint that is damaged or was not finished": (
        "test_a_loop_that_is_killed_twice_ends_as_without",
        "test_a_damaged_file_in_the_only_save_begins_anew_and_is_named",
    ),
    "a `checkpoints.dir` in which you cannot write": (
        "test_a_directory_in_which_no_checkpoint_can_be_saved_is_refused_before_a_task_starts",
    ),
    "the checkpoint of another model": ("test_another_model_is_refused",),
    "`tf.random.normal` and the like in a step": ("test_what_cannot_be_positioned_is_said_at_the_start",),
    "random numbers in the `map` of a dataset, generators": ("test_what_cannot_be_positioned_is_said_at_the_start",),
    "a loop that neither iterates over `saver.batches` nor gives": ("test_what_cannot_be_positioned_is_said_at_the_start",),
    "`worker.KerasCheckpoint` in one process; several `fit`": (
        "test_the_callback_continues_in_one_process_and_by_tensorflows_file_systems",
    ),
    "SIGTERM to a run or a task, or an engine that takes": (
        "test_a_run_that_its_engine_takes_away_and_starts_again_loses_no_step",
        "test_sigterm_to_a_run_saves_one_step_and_loses_none",
        "test_sigterm_to_one_task_saves_all_of_them_and_costs_no_restart",
    ),
    "another `steps_per_execution`": ("test_other_batches_than_before_are_said_and_other_executions_go_on_exactly",),
    "data that have become shorter than what the training has read": (
        "test_other_batches_than_before_are_said_and_other_executions_go_on_exactly",
    ),
    "another number of workers in an [elastic](resume.md#fewer-and-more-workers) run": ("test_a_host_that_is_lost_and_comes_back",),
    "another number of workers otherwise, another batch size": (
        "test_other_batches_than_before_are_said_and_other_executions_go_on_exactly",
    ),
    "`worker.checkpoints` in the chief of ParameterServerStrategy": (
        "test_a_coordinator_loses_nothing_with_a_worker_and_the_steps_since_the_save_with_a_ps",
    ),
    "the same: a `ps` is lost": ("test_a_coordinator_loses_nothing_with_a_worker_and_the_steps_since_the_save_with_a_ps",),
    "`fit` of Keras 2": ("test_fit_that_is_killed_twice_ends_as_without",),
}
UNTESTED = (
    "a variable that a step changes and that was not given",
    "a shuffle before an endless `repeat()`",
    "`fit` under ParameterServerStrategy",
)
"""Rows that say what is not exact, or is left out, without a test of their own."""
SNAPSHOTS = {
    "a killed worker costs no finished step among the first ones of an": ("test_a_training_continues_with_its_snapshot_in_memory",),
    "all tasks of two hosts killed; then one host lost; then the chief": (
        "test_hosts_keep_snapshots_when_all_tasks_die_and_when_one_host_is_lost",
    ),
    "killed five times at any moment (while a task starts, restores,": ("test_whenever_it_is_killed_it_ends_as_without",),
    "killed in the middle of a copy, or of a save on the disk": (
        "test_a_task_that_is_killed_while_it_writes_leaves_the_snapshot_before",
        "test_a_chief_that_is_killed_in_a_save_leaves_the_save_before",
    ),
    "an attempt that ends before the agent has written what the one before": (
        "test_each_attempt_that_begins_while_it_is_written_waits_for_it",
    ),
    "a killed worker, the chief, and two of three at once cost about a": ("test_a_killed_worker_costs_about_a_second",),
    "the same for a `fit` with its History": ("test_fit_that_is_killed_costs_about_a_second",),
    "the same for a worker that hangs (`--hang-timeout`)": ("test_a_stopped_worker_costs_about_a_second",),
    "the same where the program changes weights itself, in the step or": (
        "test_what_a_program_does_beside_the_optimizer_is_in_a_snapshot",
    ),
    "a disk that is full when the snapshot is written: orch prints it, and": (
        "test_a_disk_that_is_full_when_a_snapshot_is_saved_leaves_the_save_before",
    ),
    "how often: once a second, or after a hundred times what a copy takes": (
        "test_there_is_a_snapshot_about_once_a_second_where_copies_cost_little",
        "test_copies_that_take_long_are_made_after_a_hundred_times_as_long",
    ),
}
"""What is promised of snapshots in memory, and its tests. tests/worker/task/test_snapshots.py has the corners in one process."""


def rows() -> list[str]:
    """The first column of the table of promises."""
    text = (ROOT / "docs/exact.md").read_text().partition("\n## ")[0].partition("\n|---|---|\n")[2]
    return re.findall(r"^\| (.*?) \| .*? \|$", text, re.MULTILINE)


def test_each_promise_has_tests_that_exist() -> None:
    sources = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    defined = set(re.findall(r"^def (test_\w+)", sources, re.MULTILINE))
    named = {name for names in (*PROMISES.values(), *SNAPSHOTS.values()) for name in names}
    assert sorted(named - defined) == []


def test_each_row_of_the_page_is_here_once() -> None:
    begun = (*PROMISES, *UNTESTED)
    assert {row: found for row in rows() if len(found := [key for key in begun if row.startswith(key)]) != 1} == {}
    assert sorted(key for key in begun if not any(row.startswith(key) for row in rows())) == []
