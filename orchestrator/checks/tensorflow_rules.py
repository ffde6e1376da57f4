"""The rules about the interpreter, TensorFlow, Keras, TPUs and GPUs. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from worker.settings import releases
from worker.settings.keras_settings import LEGACY, install_keras_2, is_legacy
from worker.settings.releases import NEWEST_PYTHON
from worker.settings.tpu_settings import AUTO, LOCAL
from worker.values.words import count_of

from ..model.strategies import named
from .facts import HostReport, Machine, Python, TensorFlow
from .finding import Finding, Wanted, error, note, warning

OLDEST_PYTHON = (3, 10)
"""The oldest Python in which worker/ runs."""
_LIBTPU, _SKIP = "0.0.14", "TPU_SKIP_MDS_QUERY"
_CHOOSE = "set python: or --python to an interpreter that has TensorFlow"


def judge(facts: HostReport, wanted: Wanted) -> Iterator[Finding]:
    """The findings about the tasks' interpreter on one host."""
    if facts.python is None:
        yield error("python", f"{facts.program!r} cannot run the tasks", facts.python_problem, _CHOOSE)
        return
    yield from _python(facts.python)
    if wanted.tpu:
        yield from _tpu(facts.python, facts, wanted)
    severe = error if wanted.needs_tensorflow else note
    found = facts.tensorflow
    if found is None:
        yield severe("tensorflow", "the import of TensorFlow does not end", facts.import_problem, _import_remedy(facts))
    elif found.missing:
        package = "'tensorflow[and-cuda]'" if facts.machine and facts.machine.nvidia.gpus else "tensorflow-cpu"
        remedy = f"{facts.python.executable} -m pip install {package}; or {_CHOOSE}"
        if _version(facts.python.version) > NEWEST_PYTHON:
            newest = ".".join(map(str, NEWEST_PYTHON))
            remedy = f"there is no TensorFlow for Python {facts.python.version}: {_CHOOSE}, with Python {newest} or older"
        yield severe("tensorflow", f"{facts.python.executable} has no TensorFlow", "every task would fail at its import", remedy)
    elif not found.version:
        yield severe("tensorflow", "TensorFlow cannot be imported", found.problem, _import_remedy(facts))
    else:
        yield from _tensorflow(found)
        yield from _keras(found, facts, wanted)
        yield from _off(found, facts)
        if found.fork_problem:
            why = "each task imports TensorFlow for itself, which takes longer, and orch warm keeps nothing"
            yield note("fork", f"no task can be forked: {found.fork_problem}", why, "an environment without that package starts faster")
        if facts.machine is not None:
            yield from _gpus(found, facts.machine, facts, wanted)


def _version(text: str) -> tuple[int, ...]:
    words = text.split(".")[:2]
    return tuple(int(word) for word in words) if len(words) == 2 and all(word.isdigit() for word in words) else ()


def _python(python: Python) -> Iterator[Finding]:
    version = _version(python.version)
    if version and version < OLDEST_PYTHON:
        yield error("python", f"{python.executable} is Python {python.version}", "orch's part inside the tasks needs 3.10", _CHOOSE)


def _import_remedy(facts: HostReport) -> str:
    said = f"{facts.import_problem} {facts.tensorflow.problem if facts.tensorflow else ''}"
    if "SIGILL" in said or "AVX" in said:
        return "TensorFlow's builds need a CPU with AVX, and this CPU has none: use another host, or build TensorFlow for it"
    if "numpy" in said.lower():
        return "its NumPy does not fit: python -m pip install --upgrade tensorflow numpy, in an environment of its own"
    program = facts.python.executable if facts.python else "python"
    return f"try: {program} -c 'import tensorflow'; a fresh virtual environment often is the shortest way"


def _tensorflow(found: TensorFlow) -> Iterator[Finding]:
    version = _version(found.version)
    if version and version < _version(releases.OLDEST_TENSORFLOW):
        why = f"orch is made for {releases.OLDEST_TENSORFLOW} or newer"
        yield warning("tensorflow", f"TensorFlow is {found.version}", why, "pip install --upgrade tensorflow")


def _keras(found: TensorFlow, facts: HostReport, wanted: Wanted) -> Iterator[Finding]:
    asked = wanted.env.get(LEGACY, facts.machine.environment.get(LEGACY, "") if facts.machine else "")
    install = install_keras_2(facts.python.executable if facts.python else "", found.version)
    if not found.keras:
        why = found.keras_problem
        if is_legacy({LEGACY: asked}) and not found.tf_keras:
            what = "TF_USE_LEGACY_KERAS=1 is set and tf-keras is not installed"
            yield error("keras", what, why, f"{install}, or unset TF_USE_LEGACY_KERAS")
        else:
            yield warning("keras", "tf.keras cannot be imported", why, "pip install --upgrade keras, unless the script uses no Keras")
    elif found.keras.startswith("2.") or not wanted.strategy or wanted.tasks < 2:
        return
    elif under := named(wanted.strategy).no_fit_under:
        what = f"tf.keras is Keras {found.keras}, whose Model.fit cannot work under {under}"
        remedy = "for fit, Keras 2: --keras legacy" if found.tf_keras else f"for fit, Keras 2: {install}, and --keras legacy"
        yield warning("keras", what, "custom training loops work, with Keras models too", remedy)
    elif releases.is_old(found.keras):
        what = f"tf.keras is Keras {found.keras}, and orch mends {releases.KNOWN_KERAS}"
        yield warning("keras", what, releases.describe_old(found.keras), _install(facts))


def _off(found: TensorFlow, facts: HostReport) -> Iterator[Finding]:
    """The features that are off, because orch does not know the names that it replaces in these releases."""
    if found.off and not releases.is_old(found.keras):
        first, why = next(iter(found.off.items()))
        what = f"{count_of(len(found.off), 'feature')} of orch {'is' if len(found.off) == 1 else 'are'} off: {', '.join(found.off)}"
        yield warning("releases", what, f"{releases.KNOWN}; {first}: {why}", _install(facts))


def _install(facts: HostReport) -> str:
    return f"{facts.python.executable if facts.python else 'python'} -m {releases.INSTALL_KERAS}"


def _tpu(python: Python, facts: HostReport, wanted: Wanted) -> Iterator[Finding]:
    """The packages and the host of a run with a TPU. docs/tpu.md has the versions."""
    is_local = wanted.tpu in (AUTO, LOCAL)
    kind = note if wanted.falls_back else error
    install = f"{python.executable} -m pip install tensorflow-tpu==2.20.0 libtpu==0.0.14"
    found = facts.tensorflow
    if python.tensorflow_tpu.startswith("2.20.") and python.libtpu not in ("", _LIBTPU):
        what = f"libtpu {python.libtpu} does not fit tensorflow-tpu {python.tensorflow_tpu}"
        why = "with a libtpu newer than 0.0.14, importing TensorFlow was seen to end with SIGABRT; pip takes the newest"
        yield error("tpu", what, why, f"{python.executable} -m pip install libtpu=={_LIBTPU}")
    elif found is not None and found.version and is_local and not found.has_tpu:
        why = "TPUs need the package tensorflow-tpu, whose last release is 2.20"
        yield kind("tpu", f"TensorFlow {found.version} is built without TPU support", why, install)
    if facts.machine is not None and is_local and not facts.machine.tpu_chips and wanted.tpu == LOCAL:
        why = "a local TPU shows itself as a PCI device of Google's"
        yield kind(
            "tpu", "this host shows no TPU chip", why, "run on a TPU VM (-H), name another TPU (--tpu), or use --set tpu.fallback=cpu"
        )
    if python.libtpu and facts.machine is not None and not facts.machine.tpu_chips and not facts.machine.environment.get(_SKIP):
        why = "where Google's metadata server knows no TPU, libtpu asks the server for 200 s during the import of TensorFlow"
        yield note("tpu", f"{_SKIP} is not set", why, f"nothing under orch, because orch sets it; without orch: export {_SKIP}=1")


def _gpus(found: TensorFlow, machine: Machine, facts: HostReport, wanted: Wanted) -> Iterator[Finding]:
    nvidia, hidden = machine.nvidia, machine.environment.get("CUDA_VISIBLE_DEVICES")
    severe = error if wanted.gpus else warning
    if nvidia.problem:
        remedy = "nvidia-smi has to work first: reload the driver, or restart the host"
        yield severe("gpu", "NVIDIA's driver does not answer", nvidia.problem, remedy)
    if found.gpus:
        return
    if nvidia.gpus:
        yield severe(
            "gpu", f"the host has {count_of(len(nvidia.gpus), 'GPU')} and TensorFlow sees none", *_why_unseen(found, facts, hidden)
        )
    elif wanted.gpus:
        why = "the driver knows no GPU" if nvidia.driver else "there is no driver"
        yield error(
            "gpu", "GPUs are asked for and this host has none", why, "leave out gpus:, or choose a host on which nvidia-smi lists GPUs"
        )


def _why_unseen(found: TensorFlow, facts: HostReport, hidden: str | None) -> tuple[str, str]:
    """Why TensorFlow sees no GPU of the host, and a remedy. `hidden`: CUDA_VISIBLE_DEVICES."""
    if hidden is not None and hidden.strip() in ("", "-1", "none", "NoDevFiles"):
        return f"CUDA_VISIBLE_DEVICES is {hidden!r} in this environment, which hides every GPU", "unset CUDA_VISIBLE_DEVICES"
    if not found.is_cuda_build:
        return f"TensorFlow {found.version} was built without CUDA", "pip install 'tensorflow[and-cuda]'"
    line = next((line for line in facts.complaints if "dlopen" in line or "cuInit" in line or "cuda" in line.lower()), "")
    cuda, cudnn = found.build.get("cuda_version", "?"), found.build.get("cudnn_version", "?")
    why = f"it was built for CUDA {cuda} and cuDNN {cudnn}, whose libraries it does not find or the driver is too old for"
    return f"{why}{': ' if line else ''}{line}", "pip install 'tensorflow[and-cuda]', or put the libraries on LD_LIBRARY_PATH"
