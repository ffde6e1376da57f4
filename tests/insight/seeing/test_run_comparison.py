"""`orch compare`: two records side by side."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
from click.testing import CliRunner

from orchestrator.cli import orch
from orchestrator.model.state import events
from orchestrator.record.event_log import to_line
from orchestrator.record.run_directory import RunDir
from orchestrator.views.run_comparison import compare, to_text
from tests.made_up_run import BEGAN, MadeUpRun
from worker.formats import saves, tensor_file
from worker.protocol.messages import HostReady


def made(home: Path, **options: object) -> RunDir:
    """A record in a directory of its own, for the records of as many workers have one name."""
    return MadeUpRun(home / str(len(list(home.iterdir()))), **{"seconds": 200.0, **options}).run  # type: ignore[arg-type]


def text_of(one: RunDir, other: RunDir) -> str:
    return "\n".join(to_text(compare(one, other)))


def save(run: RunDir, step: int, *values: float, statistics: tuple[float, ...] = (1.0,)) -> None:
    """A save with a variable of these values, and another one."""
    given = {"dense/kernel": values, "moving_mean": statistics}
    save_of(run, step, {saves.MODEL: {name: tensor(*each) for name, each in given.items()}})


def tensor(*values: float, dtype: str = "F32") -> tensor_file.Tensor:
    return tensor_file.Tensor(dtype, (len(values),), struct.pack(f"<{len(values)}{'d' if dtype == 'F64' else 'f'}", *values))


def save_of(run: RunDir, step: int, files: dict[str, dict[str, tensor_file.Tensor]]) -> None:
    directory = str(run.path / "checkpoints/fit-1" / saves.name_of(step))
    Path(directory).mkdir(parents=True)
    for name, tensors in files.items():
        saves.write_file(saves.LOCAL, directory, name, tensors, {})
    world = {"workers": ["worker-0"], "replicas": 1}
    made = {"at": BEGAN, "order": "o", "world": world, "versions": {}, "run": run.run_id, "attempt": 1}
    note = {**made, "step": step, "kind": "", "by": "worker-0", "input": {"epoch": 0, "batch": 1}}
    saves.finish(saves.LOCAL, directory, note, {name: tensor_file.describe(tensors) for name, tensors in files.items()})


def test_two_runs_that_are_alike_are_called_so(tmp_path: Path) -> None:
    one, other = made(tmp_path), made(tmp_path)
    for run in (one, other):
        save(run, 10, 1.0, 2.0)
    found = compare(one, other)
    assert (found.start, found.reported, found.saved, found.parts) == ([], None, None, False)
    assert (found.steps, found.saves) == (49, 1)
    lines = "\n".join(to_text(found))
    assert "the two runs were started alike" in lines
    assert "the reports are the same: 49 steps" in lines
    assert "the checkpoints are equal: 1 checkpoint of the same step, bit by bit" in lines


def test_what_was_different_at_the_start_is_a_row_each_without_secrets(tmp_path: Path) -> None:
    one, other = made(tmp_path, workers=2), made(tmp_path, workers=3)
    spec = {"script": "train.py", "tasks": {"worker": {"count": 3}}, "args": ["--rate", "0.2", "--api-key", "hunter2hunter2"]}
    spec["defaults"] = {"env": {"DB_PASSWORD": "a,hunter2 hunter2"}}
    (other.path / "spec.yaml").write_text(json.dumps(spec))
    for run, tensorflow, code in ((one, "2.20.0", "aaaa"), (other, "2.21.0", "bbbb")):
        ready = HostReady(
            1, "python", "3.11", 4, at=BEGAN + 0.6, tensorflow=tensorflow, keras="3.15", code={"train.py": code}, host="local"
        )
        with (run.path / "events.jsonl").open("r+b") as file:  # before the end of the run
            lines = file.readlines()
            file.seek(0)
            file.writelines([*lines[:3], to_line(ready), *lines[3:]])
    rows = {name: (mine, theirs) for name, mine, theirs in compare(one, other).start}
    assert rows["tasks in the end"] == ("2 workers", "3 workers")
    assert rows["TensorFlow"] == ("2.20.0", "2.21.0")
    assert rows["code of train.py"] == ("aaaa", "bbbb")
    assert rows["args"][1].startswith("--rate 0.2 --api-key")
    assert "Keras" not in rows
    assert "hunter2" not in str(rows)


def test_the_first_step_is_named_at_which_a_number_differs_by_more_than_rounding(tmp_path: Path) -> None:
    one, other = made(tmp_path), made(tmp_path, nan_from=30)
    found = compare(one, other)
    assert found.reported is not None
    assert (found.reported.where, found.reported.name, found.reported.share) == ("step 30", "loss", None)
    assert f"the reports part at step 30: loss is {1 / 30:.6g} and nan" in text_of(one, other)


def test_two_losses_that_are_nan_in_the_same_steps_are_the_same(tmp_path: Path) -> None:
    assert compare(made(tmp_path, nan_from=30), made(tmp_path, nan_from=30)).reported is None


def test_a_step_that_was_done_again_counts_as_the_last_time(tmp_path: Path) -> None:
    one, other = made(tmp_path), made(tmp_path, fails_at=(0.5,))
    found = compare(one, other)
    assert found.reported is None
    assert next(row for row in found.end if row[0] == "restarts")[1:] == ("0", "1")


def test_the_first_variable_of_the_first_save_that_differs_is_named_with_its_share(tmp_path: Path) -> None:
    one, other = made(tmp_path), made(tmp_path)
    for run, last in ((one, 4.0), (other, 5.0)):
        save(run, 10, 3.0, 4.0)
        save(run, 20, 3.0, last, statistics=(last,))
        save(run, 30, 3.0, last)
    found = compare(one, other).saved
    assert found is not None
    assert (found.where, found.name, found.share, found.also) == ("step 20 of fit-1", "dense/kernel", 0.2, 1)
    assert "the checkpoints differ from step 20 of fit-1: dense/kernel differs (by 20 %), and 1 further variable" in text_of(one, other)


@pytest.mark.parametrize(
    ("mine", "theirs", "name"),
    [
        ({saves.MODEL: ("a",)}, {saves.MODEL: ("a", "b")}, "b"),
        ({saves.MODEL: ("a", "b")}, {saves.MODEL: ("a",)}, "b"),
        ({saves.MODEL: ()}, {saves.MODEL: ("a",)}, "a"),
        ({}, {saves.MODEL: ("a",)}, "a"),
    ],
)
def test_a_variable_that_one_save_alone_has_is_a_difference(
    tmp_path: Path, mine: dict[str, tuple[str, ...]], theirs: dict[str, tuple[str, ...]], name: str
) -> None:
    one, other = made(tmp_path), made(tmp_path)
    for run, files in ((one, mine), (other, theirs)):
        save_of(run, 10, {file: {variable: tensor(1.0) for variable in variables} for file, variables in files.items()})
    found = compare(one, other)
    assert found.saved is not None
    assert (found.saved.name, found.saved.share, found.parts) == (name, None, True)


def test_what_the_same_worker_has_of_its_own_is_compared_and_a_worker_of_one_run_alone_is_not(tmp_path: Path) -> None:
    one, other = made(tmp_path), made(tmp_path)
    for run, value in ((one, 1.0), (other, 2.0)):
        save_of(run, 10, {saves.MODEL: {"a": tensor(1.0)}, f"worker-{value:.0f}.safetensors": {"seed": tensor(value)}})
    assert compare(one, other).saved is None
    for run, value in ((one, 4.0), (other, 6.0)):
        save_of(run, 20, {saves.MODEL: {"a": tensor(1.0)}, "worker-0.safetensors": {"seed": tensor(value)}})
    found = compare(one, other).saved
    assert found is not None
    assert (found.where, found.name, found.share) == ("step 20 of fit-1", "seed of worker-0", 0.5)


def test_reports_that_have_no_name_in_common_are_not_called_the_same(tmp_path: Path) -> None:
    one, other = made(tmp_path), made(tmp_path)
    for path in other.path.rglob("*.jsonl"):
        path.write_text(path.read_text().replace('"loss"', '"other"').replace('"accuracy"', '"another"'))
    assert compare(one, other).steps == 0


@pytest.mark.parametrize(("given", "dtype", "share"), [((1e200, 2e200), "F64", 1.0), ((1.0, float("inf")), "F32", None)])
def test_the_share_of_any_number_is_a_number_or_is_not_shown(
    tmp_path: Path, given: tuple[float, float], dtype: str, share: float | None
) -> None:
    one, other = made(tmp_path), made(tmp_path)
    for run, value in zip((one, other), given, strict=True):
        save_of(run, 10, {saves.MODEL: {"a": tensor(value, dtype=dtype), "alike": tensor(1.0)}})
    found = compare(one, other).saved
    assert found is not None
    assert found.share == share


@pytest.mark.parametrize("shape", [[1.5], [0.5], [1e300], ["x"], [1 << 40]])
def test_a_save_whose_shapes_lie_differs_and_is_not_read(tmp_path: Path, shape: list[object], monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = made(tmp_path), made(tmp_path)
    describe = tensor_file.describe
    monkeypatch.setattr(tensor_file, "bytes_of", lambda _told: 4)
    monkeypatch.setattr(
        tensor_file, "describe", lambda tensors: {name: {**told, "shape": shape} for name, told in describe(tensors).items()}
    )
    for run, value in ((one, 1.0), (other, 2.0)):
        save(run, 10, value)
    found = compare(one, other).saved
    assert found is not None
    assert (found.name, found.share) == ("dense/kernel", None)


def test_a_run_without_reports_and_one_that_was_cut_off_are_compared_as_far_as_they_go(tmp_path: Path) -> None:
    one, other = made(tmp_path), made(tmp_path)
    lines = (other.path / "events.jsonl").read_bytes().splitlines(keepends=True)
    kind = f'"event":"{events.TaskReported.__name__}"'
    (other.path / "events.jsonl").write_bytes(b"".join(line for line in lines[:8] if kind.encode() not in line))
    (other.path / "result.json").unlink(missing_ok=True)
    text = text_of(one, other)
    assert "there is no step that both have reported" in text
    assert "was cut off" in text


@pytest.mark.parametrize(("nan_from", "code"), [(None, 0), (30, 1)])
def test_the_command_prints_json_and_its_exit_code_says_whether_the_numbers_part(tmp_path: Path, nan_from: int | None, code: int) -> None:
    one, other = (MadeUpRun(tmp_path, workers=workers, nan_from=value).run for workers, value in ((2, None), (3, nan_from)))
    done = CliRunner().invoke(orch, ["compare", one.run_id, other.run_id, "--home", str(tmp_path), "--json"], standalone_mode=False)
    assert done.return_value == code, done.output
    assert "NaN" not in done.output  # which is no JSON
    assert json.loads(done.output)["runs"] == [one.run_id, other.run_id]
