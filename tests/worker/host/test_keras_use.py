"""Which Keras a program needs, seen before it runs."""

from __future__ import annotations

import ast
import sys
import sysconfig
import venv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Orch
from worker.host.facts import host_facts, keras_use
from worker.host.facts.program_files import Source
from worker.protocol.messages import Hello
from worker.settings import releases
from worker.settings.keras_settings import LEGACY

REMEDY = f": {sys.executable} -m {releases.INSTALL_KERAS}"


def is_noted(version: str) -> str:
    return f"fit() of Keras {version} fails on several workers, and trains or counts wrongly on several replicas of one process; before "


@pytest.mark.parametrize(
    ("source", "has_replicas", "version", "is_told"),
    [
        ("import keras", True, "3.4.1", True),
        ("import keras", True, "3.99.0", False),
        ("import keras", False, "3.9.2", False),
        ("import tensorflow as tf", True, "3.9.2", False),
    ],
)
def test_a_keras_that_is_too_old_for_several_replicas_is_noted(
    tmp_path: Path, source: str, has_replicas: bool, version: str, is_told: bool
) -> None:
    hello = Hello("run", cwd="/", search_envs=(site_packages(tmp_path, keras=version),), has_replicas=has_replicas)
    noted = keras_use.describe_old([Source("a.py", ast.parse(source), source.encode())], hello)
    assert (noted.startswith(is_noted(version)) and noted.endswith(REMEDY)) if is_told else not noted


BUILT = "import keras, worker\nstrategy = worker.strategy()\nwith strategy.scope():\n    model = build()\n"
FIT = "model.fit(d, epochs=2)"


@pytest.mark.parametrize(
    ("version", "told", "said"),
    [
        ("3.9.2", {"ports": 2, "has_replicas": True}, "fit() of Keras 3.9.2 cannot work on several workers, because orch does not know"),
        ("3.99.0", {"ports": 2, "has_replicas": True}, "fit() of Keras 3.99.0 cannot work on several workers, because orch does not know"),
        ("3.99.0", {"ports": 2}, ""),  # one worker, or --keras off
        ("3.99.0", {"has_replicas": True}, ""),  # replicas of one process
        (
            "3.15.0",
            {"ports": 2, "has_servers": True},
            "fit() of Keras 3 cannot work with parameter servers: --keras legacy runs with Keras 2",
        ),
    ],
)
def test_a_fit_that_cannot_work_in_the_cluster_is_refused_where_it_is_certain(
    tmp_path: Path, version: str, told: dict[str, Any], said: str
) -> None:
    hello = Hello("run", cwd="/", search_envs=(site_packages(tmp_path, keras=version),), **told)
    source = Source("a.py", ast.parse(f"{BUILT}{FIT}"), b"keras")
    found = list(keras_use.find_unfit_fit([source], hello))
    assert [one.partition(f"a.py:5: {said}")[1] for one in found] == ([f"a.py:5: {said}"] if said else [])


def test_a_fit_that_cannot_work_is_refused_before_a_task_starts(orch: Orch, script: Callable[..., Path], tmp_path: Path) -> None:
    script(f"{BUILT}{FIT}")
    refused = orch("up", "script.py", "--ps", "1", check=2).err
    assert "script.py:5: fit() of Keras 3 cannot work with parameter servers" in refused
    assert "worker-0" not in refused


@pytest.mark.tensorflow
@pytest.mark.parametrize("package", ["keras", "tf_keras"])
def test_saves_that_fit_cannot_make_are_refused(tmp_path: Path, package: str) -> None:
    pytest.importorskip("tf_keras") if package == "tf_keras" else None
    sources = [Source("a.py", ast.parse("import keras"), b"import keras")]
    for version, saves, count in (("9.9.0", True, 1), ("9.9.0", False, 0), ("", True, 0)):
        env = site_packages(tmp_path / version, **{package: version}) if version and saves else {}
        found = keras_use.find_unfit_saves(sources, Hello("run", cwd="/", search_envs=(env,), saves=saves), package)
        assert len(found) == count
        for one in found:
            assert one.startswith(f"fit of {package} 9.9.0 cannot save (--checkpoint), because orch does not know this release (")
            assert one.endswith(f"{REMEDY}; or run without --checkpoint")


def site_packages(directory: Path, **versions: str) -> dict[str, str]:
    """What a task finds in these packages, which have a version and no code."""
    for name, version in versions.items():
        package = directory / name
        (package / "src").mkdir(parents=True)
        in_init = f'__version__ = "{version}"\n' if name == "tf_keras" else ""
        (package / "__init__.py").write_text(in_init)
        if name == "keras":
            (package / "src" / "version.py").write_text(f'# Unique source of truth for the version number.\n__version__ = "{version}"\n')
        (directory / f"{name}-{version}.dist-info").mkdir()
    return {"PYTHONPATH": str(directory)}


@pytest.mark.parametrize(
    ("tf_keras", "tensorflow", "said"),
    [
        ("2.21.0", "2.21.0", ""),
        ("2.21.1", "2.21.0rc1", ""),
        ("2.22.0", "2.22.0rc0", ""),
        ("2.20.1", "2.21.0", "tf-keras 2.20.1 is made for TensorFlow 2.20, and {} has TensorFlow 2.21.0: {} -m pip install --no-deps "),
        ("2.21.0", "2.22.0rc0", "tf-keras 2.21.0 is made for TensorFlow 2.21, and {} has TensorFlow 2.22.0rc0: choose a Python with "),
    ],
)
def test_keras_2_must_be_that_of_this_tensorflow(tmp_path: Path, tf_keras: str, tensorflow: str, said: str) -> None:
    env = {**site_packages(tmp_path, tf_keras=tf_keras, tensorflow=tensorflow), LEGACY: "1"}
    sources = [Source("a.py", ast.parse("import tensorflow"))]
    found = keras_use.find_problems(sources, "/", [env])
    assert [f"{LEGACY}=1), and {said.format(*[sys.executable] * 2)}" in one for one in found] == [True] * bool(said)
    assert [one.endswith("; or leave that out, which is Keras 3") for one in found] == [True] * bool(said)
    assert keras_use.find_problems(sources, "/", [env, {LEGACY: "0"}]) == [], "not all tasks ask for it"


def test_the_version_of_keras_is_read_and_nothing_is_imported(tmp_path: Path) -> None:
    env = site_packages(tmp_path, keras="3.4.1")
    assert host_facts.find_keras("keras", env, "/") == "3.4.1"
    (tmp_path / "keras" / "src" / "version.py").write_text("raise SystemExit\n")
    assert host_facts.find_keras("keras", env, "/") is None
    assert host_facts.find_keras("no_such_keras", env, "/") == ""


@pytest.fixture
def python_without_keras_2(tmp_path: Path) -> Path:
    """An interpreter with all packages of this one but tf-keras."""
    venv.create(tmp_path / "venv", symlinks=True)
    (packages,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    for path in map(Path, {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}):
        for package in path.iterdir():
            if not package.name.startswith("tf_keras") and not (packages / package.name).exists():
                (packages / package.name).symlink_to(package)
    return tmp_path / "venv/bin/python"


@pytest.mark.tensorflow
@pytest.mark.parametrize("how", [["--keras", "legacy"], ["--env", "TF_USE_LEGACY_KERAS=1"]])
def test_a_run_that_wants_keras_2_needs_tf_keras(
    orch: Orch, script: Callable[..., Path], python_without_keras_2: Path, how: list[str]
) -> None:
    script("import tensorflow")
    python = python_without_keras_2
    done = orch("up", "script.py", "--python", python, *how, check=2)
    assert f"tf-keras is not installed for {python}: {python} -m pip install --no-deps 'tf-keras~=" in done.err


@pytest.mark.slow
@pytest.mark.tensorflow
def test_a_keras_that_cannot_save_is_refused_before_a_task_starts(orch: Orch, script: Callable[..., Path], tmp_path: Path) -> None:
    packages = site_packages(tmp_path / "packages", keras="3.9.2")
    words = ("up", "script.py", "--env", f"PYTHONPATH={packages['PYTHONPATH']}")
    script("import sys; sys.exit('no need to import tf.keras')\nimport tensorflow")
    refused = orch(*words, "--checkpoint", "-n", "1", check=2).err
    assert "fit of keras 3.9.2 cannot save (--checkpoint), because orch does not know this release (" in refused
    assert "worker-0" not in refused
    for others in (("-n", "1"), ("-n", "2", "--keras", "off"), ("-n", "2", "--ps", "1")):
        assert "of Keras 3.9.2" not in orch(*words, *others).err
    assert orch(*words, "--strategy", "mirrored", check=1).err.count(is_noted("3.9.2")) == 1


@pytest.mark.slow
@pytest.mark.tensorflow
def test_a_script_that_takes_keras_2_by_itself_gets_all_of_it(orch: Orch, script: Callable[..., Path]) -> None:
    """Forked from what had imported TensorFlow with Keras 3, it got `tf.keras` from the one and `tensorflow.keras` from the other."""
    script("""
        import os
        os.environ["TF_USE_LEGACY_KERAS"] = "1"
        import tensorflow as tf
        from tensorflow.keras import layers
        print("modules", tf.keras.layers.Dense.__module__, layers.Dense.__module__)
    """)
    done = orch("up", "script.py", "--strategy", "none", check=0)
    assert "modules tf_keras.src.layers.core.dense tf_keras.src.layers.core.dense\n" in done.out
    assert "script.py names TF_USE_LEGACY_KERAS, so each task" in done.err
