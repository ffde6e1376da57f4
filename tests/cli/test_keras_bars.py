"""Keras's lines of progress on the console of `orch up` and in `orch logs`: those of the chief, and of whoever is asked for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.conftest import Orch

BAR = "16/16 - 1s - 52ms/step - loss: 0.5000"
OTHERS = f"worker-1 | Epoch 1/1\nworker-1 | {BAR}\n"


def test_progress_is_shown_once_and_of_whoever_is_asked_for(orch: Orch, script: Callable[..., Path]) -> None:
    script(f"print('Epoch 1/1\\n{BAR}\\nmine', flush=True)")
    shown = orch("up", "script.py", "-n", "2", check=0)
    assert f"worker-0 | Epoch 1/1\nworker-0 | {BAR}\n" in shown.out
    assert "worker-1 | mine\n" in shown.out
    assert f"worker-1 | {BAR}" not in shown.out
    assert "2 lines of TensorFlow's own messages folded; --all shows all lines" in shown.err
    assert f"worker-1 | {BAR}" not in orch("logs", check=0).out
    for words in (("logs", "--all"), ("logs", "worker-1"), ("up", "script.py", "-n", "2", "--only", "worker-1")):
        assert OTHERS in orch(*words, check=0).out
    assert f"worker-1 | {BAR}\n" in orch("up", "script.py", "-n", "2", "--all", check=0).out
