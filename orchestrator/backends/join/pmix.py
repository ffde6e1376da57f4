"""PMIx: how a launcher (Open MPI, PRRTE, `srun --mpi=pmix`) passes a text from rank 0 to all ranks of a job.

Its library is used in a program of its own, because it starts threads, reads variables that tasks do not get, and is the launcher's: a
fault in it does not end orch. There is no fence: rank 0 waits for no one, and the others ask until it has put its text.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping

LIBRARY = "libpmix.so.2"
SCOPE, STRING = ctypes.c_uint8(3), 3
"""All ranks; and the type of the text."""
KEY = ctypes.create_string_buffer(b"orch", 512)
PAUSE_S = 0.5
NONE = None, ctypes.c_size_t(0)
"""No options."""


class Process(ctypes.Structure):
    _fields_ = (("job", ctypes.c_char * 256), ("rank", ctypes.c_uint32))


class Value(ctypes.Structure):
    _fields_ = (("type", ctypes.c_uint16), ("text", ctypes.c_char_p), ("others", ctypes.c_byte * 64))


def is_there(env: Mapping[str, str]) -> bool:
    return "PMIX_NAMESPACE" in env and env.get("PMIX_RANK", "").isdecimal()


def exchange(env: Mapping[str, str], text: str | None) -> str:
    """Give all ranks a text, as rank 0, or get it (None). Waits for rank 0. Raises OSError, ValueError."""
    done = subprocess.run((sys.executable, "-I", __file__), check=False, env=env, input=text or "", capture_output=True, text=True)
    if not done.stdout:
        raise ValueError((done.stderr.strip().splitlines() or [f"PMIx ends with exit code {done.returncode}"])[-1])
    return done.stdout


def main() -> None:
    """The program. A process that has called PMIx_Init has to call PMIx_Finalize, or the launcher takes it for one that has crashed."""
    parent, launcher = os.getppid(), shutil.which("mpirun") or shutil.which("prterun") or ""
    prefix = os.path.dirname(os.path.dirname(os.path.realpath(launcher)))
    beside = (os.path.join(prefix, place, LIBRARY) for place in ("lib", "lib64"))
    pmix = ctypes.CDLL(next(filter(os.path.exists, beside), LIBRARY))
    me, found = Process(), ctypes.POINTER(Value)()
    if code := pmix.PMIx_Init(ctypes.byref(me), *NONE):
        sys.exit(f"PMIx_Init ends with {code}")
    try:
        if me.rank == 0:
            pmix.PMIx_Put(SCOPE, KEY, ctypes.byref(Value(STRING, sys.stdin.buffer.read())))
            pmix.PMIx_Commit()
        while pmix.PMIx_Get(ctypes.byref(Process(me.job, 0)), KEY, *NONE, ctypes.byref(found)):
            time.sleep(PAUSE_S)
            if os.getppid() != parent:
                sys.exit("orch has ended")
        sys.stdout.buffer.write(found[0].text)
    finally:
        pmix.PMIx_Finalize(*NONE)


if __name__ == "__main__":
    main()
