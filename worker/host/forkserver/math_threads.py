"""Sets the number of threads of the math libraries that this process has loaded.

OpenBLAS and the OpenMP runtimes read ``OMP_NUM_THREADS`` when they are loaded. A task may want another number than the warm process was
started with: the number depends on how many tasks share the machine.

The warm process is started with one thread. When an OpenBLAS that was loaded with more is told another number in a fork, it first starts
all its threads again, and each of them spins for some 50 ms before it sleeps (``blas_thread_server`` in OpenBLAS's
driver/others/blas_server.c). With two OpenBLAS, NumPy's and SciPy's, on two cores this was 100 ms of CPU in each task.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Callable, Iterator

THREADS = "OMP_NUM_THREADS"
_LIBRARIES = re.compile(r"/lib(?:([a-z_]*openblas)|gomp[-.]|iomp5[-.]|omp[-.])[^/]*$")
# NumPy and SciPy ship OpenBLAS with prefixed and suffixed names.
_OPENBLAS = tuple(f"{prefix}openblas_set_num_threads{suffix}" for prefix in ("scipy_", "") for suffix in ("64_", ""))


def find_setters() -> Iterator[Callable[[int], object]]:
    """A function of each loaded library, which sets the number of its threads."""
    with open("/proc/self/maps", errors="surrogateescape") as maps:
        loaded = {line[line.find("/") :].rstrip("\n") for line in maps if ".so" in line}
    for path in loaded:
        if match := _LIBRARIES.search(path):
            library = ctypes.CDLL(path, mode=os.RTLD_NOLOAD)
            names = _OPENBLAS if match[1] else ("omp_set_num_threads",)
            yield from [getattr(library, name) for name in names if hasattr(library, name)][:1]
