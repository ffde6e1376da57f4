"""Notebooks: `orch up notebook.ipynb`, and in a kernel of Jupyter `%%orch` and `launch` of a function. No TensorFlow."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from orchestrator import cell_magic
from orchestrator.errors import OrchError, UsageError
from tests.conftest import Orch
from tests.live import LiveRun, wait_until
from tests.own_environment import python_with

UP = ("up", "guide.ipynb", "-n", "2")


def write(place: Path, *cells: str, tags: tuple[str, ...] = ()) -> None:
    made = [{"cell_type": "code", "source": textwrap.dedent(text), "metadata": {"tags": tags}, "outputs": []} for text in cells]
    (place / "guide.ipynb").write_text(json.dumps({"cells": made, "nbformat": 4, "nbformat_minor": 5, "metadata": {}}))
    (place / "orch.yaml").write_text("preload: []\n")


def test_the_cells_of_a_notebook_run_in_each_task(orch: Orch, tmp_path: Path) -> None:
    first = "%matplotlib inline\n%env LEVEL=2\nimport os\ndef doubled(x):\n    return 2 * x\n"
    write(
        tmp_path,
        first,
        "%%writefile helper.py\nX = 20\n",
        "!ls\nimport helper\ndisplay(doubled(helper.X), os.environ['LEVEL'], __name__)\n",
    )
    done = orch(*UP, check=0)
    assert sorted(line for line in done.out.splitlines()) == [f"worker-{i} | 40 2 __main__" for i in range(2)]
    assert done.err.count("guide.ipynb: left out, as only Jupyter runs it: cell 3, line 1: !ls") == 1


def test_a_traceback_says_cell_and_line_and_shows_the_line(orch: Orch, tmp_path: Path) -> None:
    write(tmp_path, "def fails():\n    # a comment\n    raise ValueError('odd')\n", "x = 1\nfails()\n")
    done = orch(*UP, check=1)
    place = tmp_path / "guide.ipynb"
    shown = done.err.replace("worker-0 | ", "").replace("worker-1 | ", "")
    assert f'  File "{place} cell 2", line 2, in <module>\n    fails()' in shown
    assert f'  File "{place} cell 1", line 3, in fails\n    raise ValueError' in shown
    (log,) = {(tmp_path / f".orch/latest/attempt-1/worker-{i}/stderr.log").read_text() for i in range(2)} - {""}
    assert "Traceback" in log
    assert "program.py" not in log, "no frame of orch"


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        (
            ("x = 1", "y = 2\n%pip install x"),
            "installs a package (cell 2, line 2: %pip install x): install it first, and tag the cell skip-execution",
        ),
        (("x = 1", "y = 2\nx y"), "cell 2, line 2: invalid syntax\n           x y"),
        (("await x",), "cell 1, line 1: 'await' outside function"),
        (("files = !ls",), "cell 1, line 1: invalid syntax\n           files = !ls\n"),
    ],
)
def test_what_no_task_can_run_is_refused(orch: Orch, tmp_path: Path, cells: tuple[str, ...], said: str) -> None:
    write(tmp_path, *cells)
    done = orch(*UP, check=2)
    assert said in done.err
    assert not (tmp_path / ".orch/latest").exists()


def test_what_is_no_notebook_is_refused(orch: Orch, tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "guide.ipynb").write_text("{}")
    assert "it is no notebook of nbformat 4 (KeyError: 'cells')" in orch(*UP, check=2).err


TRAINS = (
    "import tensorflow as tf\nimport worker\nstrategy = worker.strategy()",
    "@tf.function\ndef doubled(x):\n    if tf.reduce_sum(x) > 0:  # for AutoGraph\n        return 2.0 * x\n    return x",
    "def step():\n    return tf.distribute.get_replica_context().all_reduce('sum', doubled(tf.constant(3.0)))",
    "print('got', float(strategy.run(step)))",
)


@pytest.mark.slow
@pytest.mark.core
@pytest.mark.tensorflow
def test_a_notebook_trains(orch: Orch, tmp_path: Path) -> None:
    write(tmp_path, *TRAINS)
    (tmp_path / "orch.yaml").unlink()
    done = orch(*UP, check=0)
    assert [line for line in sorted(done.out.splitlines()) if "got" in line] == [f"worker-{number} | got 12.0" for number in range(2)]


# --- %%orch ---------------------------------------------------------------------------------------


def test_a_cell_runs_as_orch_up_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    cell_magic.run_cell("-n 2 --set preload=[] -- --word 'a b'", "import sys\n%time print(sys.argv[1:])\n")
    said = capsys.readouterr().out
    for number in range(2):
        assert f"worker-{number} | ['--word', 'a b']\n" in said
    with pytest.raises(OrchError, match="exit code 3"):
        cell_magic.run_cell("--strategy none", "import sys\nsys.exit(3)")
    with pytest.raises(UsageError, match=r"leave -d out\nfix: orch up notebook\.ipynb -d"):
        cell_magic.run_cell("-n 2 -d", "")
    with pytest.raises(OrchError, match="exit code 2"):
        cell_magic.run_cell("--no-such-option", "")
    assert "there is no option --no-such-option" in capsys.readouterr().out
    assert {*os.listdir(tmp_path)} == {".orch"}


@pytest.mark.parametrize(("held", "options", "warns"), [(1, "", True), (0, "", False), (1, "--gpus 0", False), (1, "-H a:1", False)])
def test_gpus_that_the_kernel_holds_are_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, held: int, options: str, warns: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    config = SimpleNamespace(list_logical_devices={"GPU": ["GPU:0"] * held}.__getitem__)
    monkeypatch.setitem(sys.modules, "tensorflow", SimpleNamespace(config=config))
    context = SimpleNamespace(context_safe=lambda: SimpleNamespace(_initialized=True))
    monkeypatch.setitem(sys.modules, "tensorflow.python.eager.context", context)
    monkeypatch.setattr(cell_magic, "_follow", lambda _: 0)
    cell_magic.run_cell(options, "")
    assert capsys.readouterr().err.startswith("warning: TensorFlow in this process holds 1 GPU, whose memory") is warns


@pytest.fixture(scope="module")
def kernel_python() -> str:
    return python_with("notebooks", "ipykernel>=6", "nbclient>=0.10", sees_ours=True)


EXECUTE = """
import sys, nbformat, nbclient
notebook = nbformat.read(sys.argv[1], as_version=4)
client = nbclient.NotebookClient(notebook, timeout=200, allow_errors=True, kernel_name="python3")
client.execute()
nbformat.write(notebook, sys.argv[2])
"""
"""Executes a notebook in a kernel, as Jupyter does."""


def executed(python: str, place: Path, *cells: str) -> list[str]:
    """The outputs of the cells as text; an error as its traceback, without colours."""
    write(place, *cells)
    subprocess.run([python, "-c", EXECUTE, "guide.ipynb", "done.ipynb"], cwd=place, check=True, timeout=250, env=_env())
    found = []
    for cell in json.loads((place / "done.ipynb").read_text())["cells"]:
        parts = [part.get("text") or part.get("traceback") or part.get("data", {}).get("text/plain", []) for part in cell["outputs"]]
        found.append(_plain("\n".join("".join(part) if isinstance(part, list) and "text" else part for part in parts)))
    return found


def _env() -> dict[str, str]:
    # The kernel finds orch by its own path, and keeps its files where only this session looks.
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def _plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


@pytest.mark.slow
@pytest.mark.core
def test_a_notebook_in_a_kernel_of_jupyter(kernel_python: str, tmp_path: Path) -> None:
    outputs = executed(
        kernel_python,
        tmp_path,
        "%load_ext orchestrator",
        "%%orch -n 2 --set preload=[]\nimport os\nprint('in', os.environ['ORCH_TASK'])",
        "%%orch --strategy none\nx = 1\nraise ValueError('odd')",
        "import os\nimport orchestrator",
        "def named(x):\n    if x > 1:\n        raise KeyError('odd')\n    return os.environ['ORCH_TASK'], x",
        "orchestrator.launch(named, 1, workers=2, preload=[]).wait().values",
        "orchestrator.launch(named, 2, workers=2, preload=[]).wait().values",
    )
    assert outputs[0] == ""
    for number in range(2):
        assert f"worker-{number} | in worker-{number}\n" in outputs[1]
    assert 'cell 1", line 3, in <module>\n' in outputs[2].replace("worker-0 | ", "")
    assert "OrchError: the run of the cell has ended with exit code 1" in outputs[2]
    assert outputs[5] == "{'worker-0': ('worker-0', 1), 'worker-1': ('worker-1', 1)}"
    assert "KeyError" in outputs[6]
    assert "raise KeyError('odd')" in outputs[6], "its line in the notebook"
    logs = "".join(path.read_text() for path in tmp_path.glob(".orch/latest/attempt-1/*/stderr.log"))
    assert "    raise KeyError('odd')\nKeyError: 'odd'" in logs, "a line that no file has"


STOP = """
import os, signal, sys, time
import jupyter_client

work = "import os, time\\nopen(os.environ['ORCH_TASK'], 'w').write(str(os.getpid()))\\ntime.sleep(1000)\\n"
magic = "%%orch -n 2 --set preload=[]\\n" + work
launch = "import orchestrator\\ndef work():\\n    " + work.replace("\\n", "\\n    ")
launch += "\\nwith orchestrator.launch(work, workers=2, preload=[]) as run:\\n    run.wait()"
manager, client = jupyter_client.manager.start_new_kernel(kernel_name="python3")
client.execute("%load_ext orchestrator", reply=True)
client.execute(launch if sys.argv[1] == "launch" else magic, stop_on_error=False)
while not all(os.path.exists(f"worker-{i}") and open(f"worker-{i}").read() for i in range(2)):
    time.sleep(0.1)
if sys.argv[1] == "kill":
    os.kill(manager.provisioner.pid, signal.SIGKILL)
else:
    manager.interrupt_kernel()
    print(client.get_shell_msg(timeout=100)["content"]["ename"])
    print(client.execute("print('next')", reply=True, timeout=60)["content"]["status"])
    client.stop_channels()
    manager.shutdown_kernel(now=True)
"""


@pytest.mark.slow
@pytest.mark.core
@pytest.mark.parametrize(("how", "said", "code"), [("magic", "OrchError", 130), ("launch", "KeyboardInterrupt", 143), ("kill", "", 143)])
def test_the_stop_button_and_the_end_of_the_kernel_reach_the_workers(
    kernel_python: str, tmp_path: Path, run: LiveRun, how: str, said: str, code: int
) -> None:
    done = subprocess.run([kernel_python, "-c", STOP, how], cwd=tmp_path, capture_output=True, text=True, timeout=250, env=_env())
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ([said, "ok"] if said else [])
    workers = [int((tmp_path / f"worker-{number}").read_text()) for number in range(2)]
    wait_until(lambda: not any(map(psutil.pid_exists, workers)), "end of the workers")
    wait_until(lambda: (run.path / "result.json").exists(), "result")
    assert json.loads((run.path / "result.json").read_text())["exit_code"] == code
    assert how == "kill" or not [*tmp_path.glob(".orch-cell-*")]
