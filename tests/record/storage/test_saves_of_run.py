"""From which saves a new run continues, and which are shown."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.errors import UsageError
from orchestrator.model.settings import ClusterSpec
from orchestrator.model.settings.document import from_data
from orchestrator.model.settings.parse import parse, to_document
from orchestrator.record import saves_of_run
from orchestrator.record.run_directory import RunDir
from orchestrator.record.run_store import create_run
from orchestrator.views import saves_report
from tests.conftest import Orch
from worker.formats import saves


def spec_with(resume: str, workdir: Path) -> ClusterSpec:
    document = {"script": "train.py", "tasks": {"worker": 1}, "checkpoints": {"resume": resume} if resume else {}}
    return parse(from_data(document, "test"), workdir=str(workdir))


def save(base: Path, series: str, step: int, **more: object) -> None:
    directory = base / series / saves.name_of(step)
    directory.mkdir(parents=True)
    place: dict[str, object] = {"by": "worker-0", "step": step, "input": {"epoch": 0, "batch": step}}
    world = {"workers": ["worker-0"], "replicas": 1}
    made = {"at": time.time(), "run": "", "attempt": 1, "order": "word", "world": world, "versions": {}}
    manifest = {**made, "files": {}, "kind": "", **place, **more}
    (directory / saves.MANIFEST).write_bytes(saves.seal(manifest))


@pytest.mark.parametrize(("told", "reached"), [("174 1\n", 180), ("190 1\n", 190), ("", 180)])
def test_a_save_is_of_steps_that_are_finished(tmp_path: Path, told: str, reached: int) -> None:
    save(tmp_path, "fit-1", 180)
    (tmp_path / "fit-1" / saves.REACHED).write_text(told)
    lines = saves_report.to_text(str(tmp_path), saves_report.read(str(tmp_path), verify=False), verified=False)
    assert next(iter(lines)) == f"fit-1: steps up to {reached} are finished"


def run_with(home: Path, name: str, resume: str, *series: str) -> Path:
    """A run that has ended, with saves. Returns their directory."""
    run = create_run(home, name)
    spec = saves_of_run.resumed(home, spec_with(resume, home))
    run.write("spec.yaml", json.dumps(to_document(spec)))
    for one in series:
        save(run.path / "checkpoints", one, 10)
    return run.path / "checkpoints"


def test_a_run_continues_all_runs_that_the_run_before_had_continued(tmp_path: Path) -> None:
    first = run_with(tmp_path, "one", "", "fit-1")
    second = run_with(tmp_path, "two", "one", "fit-2")
    run_with(tmp_path, "three", "two")  # it ended before its first save
    found = saves_of_run.resumed(tmp_path, spec_with("three", tmp_path)).checkpoints
    assert (found.resume, found.resume_older) == (str(second), (str(first),))
    found = saves_of_run.resumed(tmp_path, spec_with("two", tmp_path)).checkpoints
    assert (found.resume, found.resume_older) == (str(second), (str(first),))
    again = parse(from_data(to_document(saves_of_run.resumed(tmp_path, spec_with("two", tmp_path))), "test"), workdir=str(tmp_path))
    assert saves_of_run.resumed(tmp_path, again).checkpoints == found


def test_a_fit_that_is_continued_is_saved_also_where_the_new_run_was_not_asked_to(tmp_path: Path) -> None:
    base = run_with(tmp_path, "one", "", "fit-1")
    spec = spec_with("", tmp_path)
    saved = replace(spec, checkpoints=replace(spec.checkpoints, fit=True, every=7))
    RunDir(tmp_path / "runs" / "one").write("spec.yaml", json.dumps(to_document(saved)))
    found = saves_of_run.resumed(tmp_path, spec_with("one", tmp_path)).checkpoints
    assert (found.fit, found.every) == (True, 7)
    assert saves_of_run.resumed(tmp_path, spec_with(str(base), tmp_path)).checkpoints.fit, "the directory of its saves"
    run_with(tmp_path, "two", "", "loop-1")
    assert not saves_of_run.resumed(tmp_path, spec_with("two", tmp_path)).checkpoints.fit


def test_saves_of_tasks_that_train_alone_are_seen(tmp_path: Path) -> None:
    base = run_with(tmp_path, "alone", "", "worker-0/fit-1", "worker-1/fit-1")
    assert saves_of_run.resumed(tmp_path, spec_with("alone", tmp_path)).checkpoints.resume == str(base)
    assert [series.name for series in saves_report.read(str(base), verify=True)] == ["worker-0/fit-1", "worker-1/fit-1"]
    assert "worker-1/fit-1" in "\n".join(saves_report.to_text(str(base), saves_report.read(str(base), verify=False), verified=False))
    run_with(tmp_path, "nothing", "")
    with pytest.raises(UsageError, match="has no checkpoint"):
        saves_of_run.resumed(tmp_path, spec_with("nothing", tmp_path))


def test_a_save_is_shown_with_the_epoch_that_it_ends_or_is_in(tmp_path: Path) -> None:
    """Its manifest has the epoch that comes next, counted from 0."""
    base = run_with(tmp_path, "shown", "")
    save(base, "fit-1", 20, epoch=2, step_in_epoch=0)
    save(base, "fit-1", 24, epoch=2, step_in_epoch=4)
    _, head, *lines, _ = saves_report.to_text(str(base), saves_report.read(str(base), verify=False), verified=False)
    at = head.index("EPOCH")
    assert [line[at:].partition("  ")[0] for line in lines] == ["3, step 4", "2"]


@pytest.mark.parametrize("odd", ["a named pipe", "a directory", "a device", "3 GB"])
def test_odd_files_among_the_saves_keep_nobody_waiting(tmp_path: Path, odd: str) -> None:
    """Nor do they take memory. A task may have put them there, or whoever else may write into the directory of the saves."""
    base = run_with(tmp_path, "odd", "", "fit-1")
    save(base, "fit-1", 11)
    for place in (base / "fit-1" / saves.name_of(11) / saves.MANIFEST, base / "fit-1" / saves.REACHED, base / "fit-1" / "model.new"):
        place.unlink(missing_ok=True)
        make: dict[str, Callable[[], object]] = {
            "a named pipe": lambda place=place: os.mkfifo(place),
            "a directory": place.mkdir,
            "a device": lambda place=place: place.symlink_to("/dev/zero"),
            "3 GB": lambda place=place: (place.touch(), os.truncate(place, 3 << 30)),
        }
        make[odd]()
    (series,) = saves_report.read(str(base), verify=True)
    assert [(row.step, bool(row.problem), row.is_next) for row in series.saves] == [(11, True, False), (10, False, True)]
    assert series.reached == 10, "the newest whole save"
    if odd != "3 GB":
        with pytest.raises(OSError, match=r"not a regular file|Is a directory|No such device|symbolic links"):
            saves.write_bytes(saves.LOCAL, str(base / "fit-1" / "model"), b"new")


@pytest.mark.parametrize(
    "told",
    [
        *({"at": "noon"}, {"at": 10**400}, {"at": float("nan")}, {"files": 5}, {"files": {"a": 5}}, {"files": {"a": {"bytes": "1"}}}),
        *({"files": {"a": {"bytes": 10**400, "tensors": {}}}}, {"files": {"\ud800": {"bytes": 1, "tensors": {}}}}, {"by": "../x"}),
        *({"files": {"../x": {"bytes": 1, "tensors": {}}}}, {"step": "1"}, {"input": {}}, {"world": None}, {"order": None}, {"by": 1}),
        *({"fit": []}, {"fit": {"is_stopped": False, "callbacks": [{"class": 1}]}}, {"world": {"workers": ["/x"], "replicas": 1}}),
        *({"kind": 7}, {"kind": "x", "epoch": "y", "step_in_epoch": []}, {"run": [1], "attempt": {}}, {"sha256": 5}),
        *({"versions": 1}, {"validations": "x"}, {"lost": ["a b"]}, {"lost": "worker-1"}, {"optimizers": {"d": [1]}}, {"optimizers": [1]}),
        *({"fit": {"is_stopped": False, "callbacks": [{"class": "C", "kept": {}, "written": "1"}]}}, {"run": "\ud800"}),
    ],
    ids=str,
)
def test_a_manifest_that_somebody_else_has_sealed_is_damaged_or_shown(tmp_path: Path, told: dict[str, object]) -> None:
    """Everybody can make its checksum; and a later version of orch may write other words."""
    base = run_with(tmp_path, "odd", "", "fit-1")
    save(base, "fit-1", 11)
    manifest = base / "fit-1" / saves.name_of(11) / saves.MANIFEST
    manifest.write_bytes(saves.seal({**saves.unseal(manifest.read_bytes()), **told}))
    found = saves_report.read(str(base), verify=True)
    text = "\n".join(saves_report.to_text(str(base), found, verified=True))
    is_damaged = "not restored: manifest.json: it lacks what a manifest says" in text
    assert is_damaged == bool(found[0].saves[0].problem) == (told not in ({"sha256": 5}, {"run": "\ud800"}))
    assert saves_of_run.newest(str(base)) is not None


def test_a_link_in_the_place_of_a_save_is_removed_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").touch()
    (tmp_path / "left-1").symlink_to(tmp_path / "kept")
    saves.LOCAL.remove(str(tmp_path / "left-1"))
    assert sorted(os.listdir(tmp_path)) == ["kept"]
    assert (tmp_path / "kept" / "file").exists()


def test_a_save_that_was_not_finished_is_not_damaged(orch: Orch, tmp_path: Path) -> None:
    """Such as that of a run that was killed while it saved: the save before it is restored."""
    save(tmp_path / "saves", "fit-1", 10)
    (tmp_path / "saves" / "fit-1" / saves.name_of(11)).mkdir()
    assert "not restored: it has no manifest" in orch.in_process("checkpoints", "--verify", tmp_path / "saves", check=0).out
    (tmp_path / "saves" / "fit-1" / saves.name_of(11) / saves.MANIFEST).write_text("{}")
    orch.in_process("checkpoints", "--verify", tmp_path / "saves", check=1)
