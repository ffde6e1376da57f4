"""The number of threads of the math libraries that this process has loaded, changed after they have read ``OMP_NUM_THREADS``.

OpenBLAS and the OpenMP runtimes read the variable when they are loaded, and have a function to change their mind.
"""

from __future__ import annotations

import ctypes
import os
import re

_OPENMP = re.compile(r"/lib(gomp|iomp5|omp)[-.][^/]*$")
_OPENBLAS = re.compile(r"/lib[a-z_]*openblas[^/]*$")
# NumPy and SciPy ship OpenBLAS with prefixed and suffixed names.
_SETTERS = (
    "scipy_openblas_set_num_threads64_",
    "scipy_openblas_set_num_threads",
    "openblas_set_num_threads64_",
    "openblas_set_num_threads",
)


def can_be_set() -> bool:
    """Whether `set_threads` reaches every library here that is known to have read the variable."""
    return not any("mkl" in os.path.basename(path) or "blis" in os.path.basename(path) for path in _loaded())


def set_threads(count: int) -> None:
    """As if the libraries had been loaded under ``OMP_NUM_THREADS=count``."""
    for path in _loaded():
        names = _SETTERS if _OPENBLAS.search(path) else ("omp_set_num_threads",) if _OPENMP.search(path) else ()
        library = ctypes.CDLL(path, mode=os.RTLD_NOLOAD) if names else None
        setter = next((getattr(library, name) for name in names if hasattr(library, name)), None)
        if setter is not None:
            setter(count)


def _loaded() -> set[str]:
    with open("/proc/self/maps", errors="surrogateescape") as maps:
        return {line[line.find("/") :].rstrip("\n") for line in maps if ".so" in line}
