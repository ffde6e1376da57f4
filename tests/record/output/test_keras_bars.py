"""Keras's lines of progress: the chief's are shown, the others' are not, and no other line is taken for one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.record.text.keras_bars import without_bars
from orchestrator.record.text.log_view import LogView

BARS = (
    " 5/16 ━━━━━━━━━━━━━━━━━━━━ 2s 219ms/step - loss: 0.5878 - mae: 0.6062",
    "\x1b[1m16/16\x1b[0m \x1b[32m━━━━━━━━━━━━━━━━━━━━\x1b[0m\x1b[37m\x1b[0m \x1b[1m1s\x1b[0m 35ms/step - loss: 3.2590e-05 - mae: nan   ",
    "100/200 ==================== 1:02:03 3s/step - loss: -inf",
    "      7/Unknown 3s 408us/step - dense_accuracy: 0.5000",
    "20/20 - 1s - 29ms/step - loss: 0.2986 - mae: -0.4799",
    "16/16 - 1s - 52ms/step",
    " 5/16 [========>.....................] - ETA: 1:02 - loss: 1.3926",
    "16/16 [==============================] - 7s 304ms/step - loss: 0.5033 - val_mae: 0.5304",
    "      7/Unknown - 3s 408us/step - loss: 0.5000",
    "20/20 - 0s - loss: 0.3188 - mae: 0.4698 - 444ms/epoch - 22ms/step",
)
OTHERS = (
    "Epoch 1/10: loss 0.5",
    "Epoch 00001: early stopping",
    "16/16",
    "step 16/16 - 1s - 52ms/step",
    "16/16 - 1s - loss: 0.5",
    "16/16 - 1s - 52ms/step - loss: falling",
    " 50%|█████     | 5/10 [00:01<00:01,  3.20it/s]",
    "3/4 of it are done at 20ms/step",
)


def told(lines: list[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


def test_the_chiefs_bars_are_shown_and_the_others_are_counted() -> None:
    view = LogView(["worker-0", "worker-1"], behind=["worker-1"])
    data = told(["hello", "Epoch 1/2", *BARS, "bye"])
    assert view.render("worker-1", "stdout", data) == "worker-1 | hello\nworker-1 | bye\n"
    assert view.render("worker-0", "stdout", data).count("\n") == len(BARS) + 3
    assert view.folded_note == "11 lines of TensorFlow's own messages folded; --all shows all lines"


def test_who_asks_sees_all_bars() -> None:
    data = told(["Epoch 1/2", *BARS])
    for options in ({"fold": False}, {"only": {"worker-1"}}):
        view = LogView(["worker-1"], behind=["worker-1"], **options)
        assert view.render("worker-1", "stdout", data).count("\n") == len(BARS) + 1
        assert view.folded_note == ""


@pytest.mark.parametrize("line", OTHERS)
def test_a_line_that_only_looks_alike_is_shown(line: str) -> None:
    assert without_bars([line]) == [line]


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\n\r\x1b"), max_size=60), max_size=20))
def test_text_is_shown(lines: list[str]) -> None:
    assert without_bars(lines) == lines


def test_what_is_printed_behind_a_bar_is_a_line() -> None:
    lines = [f"{BARS[0]}my line 5", f"{BARS[0]}12 done", f"{BARS[6]}[1, 2]"]
    assert without_bars(lines) == ["my line 5", "12 done", "[1, 2]"]
