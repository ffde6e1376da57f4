"""How often `orch scale` names the bound of a program whose bound is known, and how far a forecast is off: `python -m tests.scale_bed`.

Hosts are network namespaces of this machine, with ssh between them, and a rate for what each sends (tbf). TensorFlow, its exchange and orch
are real; a sleep stands in for what would take cores (tests/programs/bounds.py), as all hosts share those of this machine. Root only.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
from dataclasses import fields
from pathlib import Path

from orchestrator.api import read_spec
from orchestrator.checks.scaling import Size, answer, forecast
from orchestrator.scale import scale
from tests import bed as beds

PROGRAM = Path(__file__).parent / "programs/bounds.py"
CASES = {  # the bound, the rate of each host in Mbit/s, the words of the program; sleeps are long beside what a busy machine adds
    "exchange-20": ("exchange", 20, "--compute 0.3 --kilobytes 1000"),
    "exchange-100": ("exchange", 100, "--compute 0.3 --kilobytes 5000"),
    "exchange-1000": ("exchange", 1000, "--compute 0.3 --kilobytes 50000"),
    "input": ("input", 0, "--compute 0.3 --input 0.8"),
    "slow": ("waiting", 0, "--compute 0.3 --slow 0.4"),
    "turns": ("waiting", 0, "--compute 0.3 --turns 0.4"),
    "python": ("Python", 0, "--compute 0.3 --python 0.4"),
    "computing": ("computing", 0, "--compute 0.8"),
    "divided": ("computing", 0, "--compute 0.2 --each 0.06 --batch 24 --for-all"),
    "small": ("small", 0, "--compute 0"),
}


def trial(bed: beds.Bed, name: str, home: str, sizes: list[int], seconds: float) -> tuple[Size, ...]:
    _, rate, words = CASES[name]
    hosts = list(bed.hosts.values())
    keys = {"backend": {"type": "ssh", "hosts": [host.name for host in hosts], "ssh": list(bed.ssh)}, "workers": sizes[-1]}
    env = {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "-1"}
    spec = read_spec(str(PROGRAM), {**keys, "args": words.split(), "env": env})
    with contextlib.ExitStack() as links:
        for host in hosts if rate else ():
            links.enter_context(host.slow_link(rate))
        found = scale(spec, home, sizes, seconds=seconds, limit_s=300)["sizes"]
    return tuple(Size(**{field.name: size[field.name] for field in fields(Size)}) for size in found)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--trials", type=int, default=1)
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--sizes", default="1,2,3,4")
    parser.add_argument("--seconds", type=float, default=10)
    asked = parser.parse_args()
    sizes = [int(word) for word in asked.sizes.split(",")]
    beds.NAMES = tuple(f"host{letter}" for letter in "ABCDEFGH"[: sizes[-1]])
    for name in asked.cases.split(","):
        named, off = list[bool](), list[float]()
        for _ in range(asked.trials):
            with beds.made_bed() as bed, tempfile.TemporaryDirectory() as home:
                found = trial(bed, name, home, sizes, asked.seconds)
            for count in range(2, len(sizes) + 1):
                made = answer(found[:count])
                named.append(made["bound"] == CASES[name][0])
                if not named[-1]:
                    print("\n".join(made["text"]), flush=True)
            for count in range(2, len(sizes)):
                off.append(forecast(found[:count], found[count].workers).step / found[count].step - 1)
            print("\n".join(answer(found)["text"]), flush=True)
            print(f"{name}: the next size is off by {', '.join(f'{100 * share:+.0f} %' for share in off)}", flush=True)
        within = sum(abs(share) <= 0.15 for share in off)
        print(f"== {name}: {sum(named)} of {len(named)} named right, {within} of {len(off)} forecasts within 15 %", flush=True)
    return 0


if __name__ == "__main__":
    os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "2"}
    sys.exit(main())
