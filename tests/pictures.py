"""The two pictures of README.md, a good run and a failing one: ``python -m tests.pictures`` makes them of real runs (`make pictures`),
and those of `pictures_of_views`.

`tests/real/test_pictures.py` compares them with runs of today: `sentences` leaves out what differs from run to run.
"""

from __future__ import annotations

import html
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from benchmarks.measure import ROOT, fill
from tests import pictures_of_views

README, FAILURE = ROOT / "README.md", ROOT / "docs" / "run.svg"
GOOD_COMMAND, FAILING_COMMAND = "orch up examples/keras_fit.py --workers 2", "orch up train.py --workers 4"
COLUMNS = 104
MISSING_SHARD = """\
import tensorflow as tf

import worker

strategy = worker.strategy()
with open(f"shard-{worker.context().index}.csv") as shard:
    numbers = [float(line) for line in shard]


@tf.function
def total():
    return strategy.reduce("SUM", strategy.run(lambda: tf.reduce_sum(numbers)), axis=None)


print("total", float(total()))
"""


def good_run(directory: Path, env: Mapping[str, str]) -> str:
    (directory / "examples").mkdir()
    for name in ("keras_fit.py", "digits.py"):
        shutil.copy(ROOT / "examples" / name, directory / "examples")
    shown = _run(GOOD_COMMAND, 0, directory, {**env, "ORCH_EXAMPLES_DATA": str(directory / "data")})
    return re.sub(r"^[^\n]*Epoch 2/5.*?(?=^[^\n]*Epoch 5/5)", "…\n", shown, flags=re.MULTILINE | re.DOTALL)


def failing_run(directory: Path, env: Mapping[str, str]) -> str:
    """What the terminal shows of a run in which the third worker does not find its part of the data."""
    (directory / "train.py").write_text(MISSING_SHARD)
    for index in (0, 1, 3):
        (directory / f"shard-{index}.csv").write_text("1\n2\n")
    return _run(f"{FAILING_COMMAND} --color always", 1, directory, env).replace(str(directory), "/home/me")


def sentences(screen: str) -> list[str]:
    """The lines of a run without colours, numbers, names of runs, the waiting that a busy machine makes longer, and their order."""
    found = []
    for line in re.sub(r"\x1b\[[\d;]*m", "", screen).splitlines():
        line = re.sub(r"-\d{8}-\d{6}-[0-9a-f]{8}", "-RUN", line.rstrip())
        line = re.sub(r"(\d+ min )?[\d.]+ ?m?s\b", "TIME", line)
        line = re.sub(r"\d[\d.]*(e[+-]?\d+)?", "N", line)
        if line and not re.search(
            r"orch: waiting for|host local: tasks are forked|own messages (?:and of tracebacks )?folded|\| *[\^~]+$|^orch: *[\^~]+$", line
        ):
            found.append(line)
    return sorted(found)


def readme_picture(readme: str) -> str:
    """The good run in README.md, without the command."""
    block = readme.partition("<!-- written by `make pictures` -->")[2]
    return block.partition("$ ")[2].partition("\n")[2].partition("```")[0]


def svg_picture(svg: str) -> str:
    """The lines of the failing run, without the command."""
    rows: dict[float, list[tuple[float, str]]] = {}
    for x, y, text in re.findall(r'<text class="run-r[^>]* x="([\d.]+)" y="([\d.]+)"[^>]*>(.*?)</text>', svg):
        rows.setdefault(float(y), []).append((float(x), html.unescape(text).replace("\xa0", " ")))
    lines = ["".join(text for _, text in sorted(row)) for _, row in sorted(rows.items())]
    return "\n".join(line for line in lines if not line.startswith("$ "))


def _run(line: str, code: int, directory: Path, env: Mapping[str, str]) -> str:
    command = [sys.executable, "-m", "orchestrator", *line.split()[1:]]
    done = subprocess.run(
        command, cwd=directory, env={**env}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if done.returncode != code:
        raise SystemExit(f"orch: {line} ended with {done.returncode}, not {code}:\n{done.stdout}")
    return done.stdout


def _as_svg(screen: str) -> str:
    from rich.console import Console
    from rich.text import Text

    console = Console(record=True, width=COLUMNS, file=open(os.devnull, "w"))  # noqa: SIM115
    console.print(Text.from_ansi(f"\x1b[1m$ {FAILING_COMMAND}\x1b[0m\n{screen.rstrip()}"))
    return console.export_svg(title=FAILING_COMMAND, unique_id="run")


def main() -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("ORCH_", "TF_"))} | {"PYTHONPATH": str(ROOT)}
    with tempfile.TemporaryDirectory() as good, tempfile.TemporaryDirectory() as failing:
        env |= {"XDG_RUNTIME_DIR": good}  # no warm process: a first run has none
        fill(README, "pictures", f"```console\n$ {GOOD_COMMAND}\n{good_run(Path(good), env)}```\n")
        FAILURE.write_text(_as_svg(failing_run(Path(failing), env)))
        pictures_of_views.take(env)


if __name__ == "__main__":
    main()
