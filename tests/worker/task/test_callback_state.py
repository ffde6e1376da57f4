"""What a save has of callbacks: what the training has changed in them, and nothing that the program gives or orch adds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from worker.formats.tensor_file import DamagedError
from worker.task.checkpoints import callback_state, variables


class Stops:
    def __init__(self, path: str, patience: int) -> None:
        self.path, self.patience = path, patience
        self.wait, self.best = 0, float("inf")
        self.best_weights: Any = None
        self.seen: list[Any] = []
        self.bounds = np.zeros(3)


class OfKeras:
    """As ModelCheckpoint, with a setting that is no text any more."""

    def __init__(self, filepath: str, save_freq: str) -> None:
        self.filepath, self.save_freq = filepath, 100
        self.paths, self.options = [Path("a")], {"at": "b"}

    def on_epoch_end(self) -> None: ...


OfKeras.__module__ = "keras.src.callbacks"


class KerasSaves(OfKeras):
    """One of the program's own that is made of it."""

    def __init__(self, *words: str) -> None:
        super().__init__(*words)
        self.wait = 0


Own = type("LambdaCallback", (Stops,), {"__module__": "worker.task.keras.callbacks"})


def continued(before: list[Any], begun: list[dict[str, str]], after: list[Any]) -> list[dict[str, Any]]:
    """Save `before`, and restore `after`, by way of text and tensors. Returns what the manifest says."""
    kept, arrays = callback_state.save(before, begun)
    told: list[dict[str, Any]] = json.loads(json.dumps(kept))
    tensors = {name: variables.tensor(array) for name, array in arrays.items()}
    read = {name: np.frombuffer(one.data, arrays[name].dtype.newbyteorder("<")).reshape(one.shape) for name, one in tensors.items()}
    callback_state.restore(after, told, read)
    return told


def test_only_what_the_training_has_changed_is_restored() -> None:
    first = Stops("runs/old/model.keras", 3)
    begun = callback_state.begin([first])
    first.wait, first.best = 2, np.float32(0.5)
    first.seen.append((1, {"loss": float("nan")}))
    first.bounds[1] = 7
    first.best_weights = [np.arange(4.0).reshape(2, 2), np.arange(3, dtype=">i4")]
    second = Stops("runs/new/model.keras", 9)
    begun_again = callback_state.begin([second])
    (told,) = continued([first], begun, [second])
    assert (second.path, second.patience) == ("runs/new/model.keras", 9)
    assert (second.wait, second.best, second.bounds.tolist()) == (2, 0.5, [0, 7, 0])
    assert repr(second.seen) == "[(1, {'loss': nan})]"
    assert [one.tolist() for one in second.best_weights] == [[[0, 1], [2, 3]], [0, 1, 2]]
    assert sorted(told["kept"]) == ["best", "best_weights", "bounds", "seen", "wait"]
    _, arrays = callback_state.save([first], begun)
    assert arrays["callbacks/0/bounds"].tolist() == [0, 7, 0]

    third = Stops("runs/third/model.keras", 1)
    continued([second], begun_again, [third])
    assert (third.path, third.patience, third.wait) == ("runs/third/model.keras", 1, 2), "also by a run that has continued another one"


def test_a_minimum_whose_sign_keras_changes_in_the_first_comparison_is_that_of_the_program() -> None:
    first, second = Stops("a", 1), Stops("a", 1)
    for callback in (first, second):
        vars(callback).update(min_delta=0.1, monitor_op=None)
    begun = callback_state.begin([first])
    vars(first).update(min_delta=-0.1, monitor_op=np.less, wait=1)
    (told,) = continued([first], begun, [second])
    assert told["kept"] == {"wait": 1}
    callback_state.restore([second], [{"class": "Stops", "kept": {"min_delta": -0.1, "wait": 2}}], {})
    assert vars(second)["min_delta"] == 0.1, "saves that have it"
    assert second.wait == 2


def test_no_save_sets_what_the_program_gives(capsys: pytest.CaptureFixture[str]) -> None:
    """A save may come from somebody else, and its seal, too: with another path the victim's own file would be overwritten."""
    kept = {"filepath": "/home/me/best.keras", "save_freq": 1, "model": 1, "on_epoch_end": 2, "paths": ["list", ["/etc/x"]], "wait": 3}
    kept |= {"options": {"at": "/etc/y"}, "__class__": 4}
    callback = KerasSaves("mine.keras", "epoch")
    callback_state.restore([callback], [{"class": "KerasSaves", "kept": kept}], {})
    assert vars(callback) == {"filepath": "mine.keras", "save_freq": 100, "paths": [Path("a")], "options": {"at": "b"}, "wait": 3}
    assert "KerasSaves.filepath stays as the program gives it, and is not restored" in capsys.readouterr().err


@pytest.mark.parametrize(
    "value", [["array", "x"], ["number", "int8", "300"], ["number", "float32", "(" * 5000], ["float", None], ["deep"]], ids=str
)
def test_a_value_that_orch_has_not_written_is_a_damaged_save(value: Any) -> None:
    for _ in range(2000 if value == ["deep"] else 0):
        value = ["list", [value]]
    with pytest.raises(DamagedError, match=r"no value that orch has written for Stops.wait"):
        callback_state.restore([Stops("a", 1)], [{"class": "Stops", "kept": {"wait": value}}], {})


class CSVLogger(Stops):
    """As that of Keras: it empties its file when a training begins."""

    def __init__(self, path: str, append: bool) -> None:
        super().__init__(path, 1)
        self.filename, self.append, self.append_header = path, append, True
        self.csv_file: Any = None

    def begin(self) -> None:
        self.csv_file = open(self.filename, "a" if self.append else "w")  # noqa: SIM115


@pytest.mark.tensorflow
@pytest.mark.parametrize("append", [False, True])
def test_a_log_continues_with_the_rows_that_it_had_at_the_save(tmp_path: Path, append: bool) -> None:
    path = tmp_path / "log.csv"
    path.write_text("epoch,loss\n0,2.0\n")
    first = CSVLogger(str(path), append)
    told, _ = callback_state.save([first], callback_state.begin([first]))
    path.write_text("epoch,loss\n0,2.0\n1,1.0\n")  # a row after the save, whose epoch is trained again
    again = CSVLogger(str(path), append)
    logs = callback_state.logs([again])
    again.begin()
    callback_state.restore([again], told, {}, logs)
    again.csv_file.write("1,1.5\n")
    again.csv_file.close()
    assert path.read_text() == "epoch,loss\n0,2.0\n1,1.5\n"
    assert not again.append_header


def test_callbacks_of_orch_are_left_out() -> None:
    first, own = Stops("a", 1), Own("b", 1)
    begun = callback_state.begin([own, first])
    own.wait = first.wait = 5
    second, other = Stops("a", 1), Own("b", 1)
    (told,) = continued([own, first], begun, [other, second])
    assert told["class"] == "Stops"
    assert (other.wait, second.wait) == (0, 5)


@pytest.mark.parametrize(
    "value",
    [np.zeros(2, np.longdouble), np.longdouble(1), np.datetime64("2026-01-01"), np.complex64(1), np.zeros(1, "M8[s]"), {1, 2}],
    ids=["longdouble array", "longdouble", "datetime64", "complex64", "datetime64 array", "set"],
)
def test_a_value_that_no_save_has_is_left_out_with_a_line(value: Any, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = Stops("a", 1), Stops("a", 1)
    begun = callback_state.begin([first])
    setattr(first, name := f"odd_{id(value)}", value)
    first.wait = 1
    (told,) = continued([first], begun, [second])
    assert told["kept"] == {"wait": 1}
    assert f"Stops.{name} is of type {type(value).__name__}, which no checkpoint has" in capsys.readouterr().err


def test_a_list_that_contains_itself_is_left_out_with_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    first = Stops("a", 1)
    begun = callback_state.begin([first])
    first.seen.append(first.seen)
    assert callback_state.save([first], begun)[0] == [{"class": "Stops", "kept": {}}]
    assert "Stops.seen is of type list, which no checkpoint has" in capsys.readouterr().err
