"""PMI-1: how a launcher (MPICH, Intel MPI, `srun --mpi=pmi2`, Flux, Cray PALS) passes a text from rank 0 to all ranks of a job.

Each process has a socket of the launcher, and speaks in lines of ``key=value``. All ranks have to come to a barrier; afterwards they read.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping

KEY = "orch"


def is_there(env: Mapping[str, str]) -> bool:
    return all(env.get(name, "").isdecimal() for name in ("PMI_FD", "PMI_RANK", "PMI_SIZE"))


def exchange(env: Mapping[str, str], text: str | None) -> str:
    """Give all ranks a text without blanks, as rank 0, or get it (None). Waits for all. Raises OSError, ValueError."""
    with socket.socket(fileno=os.dup(int(env["PMI_FD"]))) as line, line.makefile("rwb") as lines:

        def ask(**words: str | int) -> dict[str, str]:
            lines.write(" ".join(f"{key}={value}" for key, value in words.items()).encode() + b"\n")
            lines.flush()
            answer = lines.readline().decode(errors="replace")
            found = dict(word.split("=", 1) for word in answer.split() if "=" in word)
            if found.get("rc", "0") != "0" or not answer:
                raise ValueError(f"the launcher answers {words['cmd']} with {answer.strip() or 'nothing'!r}")
            return found

        ask(cmd="init", pmi_version=1, pmi_subversion=1)
        try:
            space = ask(cmd="get_my_kvsname")["kvsname"]
            if text is not None:
                ask(cmd="put", kvsname=space, key=KEY, value=text)
            ask(cmd="barrier_in")
            return ask(cmd="get", kvsname=space, key=KEY)["value"]
        except LookupError as error:
            raise ValueError(f"the launcher does not answer as PMI-1 has it: no {error}") from None
        finally:
            ask(cmd="finalize")
