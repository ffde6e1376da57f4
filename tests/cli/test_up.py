"""`orch up`: where settings come from, what reaches a task, and what is printed when nobody, or only a program, looks."""

from __future__ import annotations

import json
import operator
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from functools import reduce
from pathlib import Path
from typing import Any

import pytest

from orchestrator.api import read_spec
from orchestrator.backends import local
from orchestrator.errors import SpecError
from orchestrator.model.settings import ClusterSpec, TaskSpec
from tests.conftest import Orch
from worker.protocol.messages import Program
from worker.settings.releases import NEWEST_PYTHON

Script = Callable[..., Path]

SHOW = """
import json, os, sys
with open(os.environ["ORCH_LOG_DIR"] + "/seen.json", "w") as file:
    json.dump({"argv": sys.argv, "env": dict(os.environ), "cwd": os.getcwd()}, file)
"""


@pytest.fixture(autouse=True)
def show(script: Script) -> Path:
    return script(SHOW, "show.py")


def seen(home: Path, task: str = "worker-0") -> dict[str, Any]:
    found: dict[str, Any] = json.loads((home / "latest" / "attempt-1" / task / "seen.json").read_text())
    return found


def spec_of(home: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((home / "latest" / "spec.yaml").read_text())
    return found


# --- what reaches a task ------------------------------------------------------------------------

AWKWARD = [
    "a b",
    "it's",
    '"quoted"',
    "a,b;c&d|e",
    "two\nlines\ttab\r",
    "$HOME ${HOME} $(id) `id`",
    "%s %d {0} {name}",
    "\U0001f600 é 漢字",
    "",
    " ",
    "--",
    "--workers",
    "-n",
    "null",
    "true",
    "1e3",
    "0x10",
    "~",
    "*",
    "[a, b]",
    "{a: 1}",
    "# no comment",
    "back\\slash \\n",
    "a=b=c",
    os.fsdecode(b"\xff\xfe not UTF-8"),
]


@pytest.mark.parametrize("locale", [{}, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}], ids=["UTF-8", "C"])
def test_arguments_and_values_of_variables_arrive_as_they_were_typed(orch: Orch, tmp_path: Path, locale: dict[str, str]) -> None:
    wanted = {f"X{index}": value for index, value in enumerate(AWKWARD)}
    variables = (word for name, value in wanted.items() for word in ("--env", f"{name}={value}"))
    orch("up", "show.py", *variables, "--", *AWKWARD, env=locale, check=0)
    found = seen(tmp_path / ".orch")
    assert [os.fsencode(word) for word in found["argv"]] == [b"show.py", *map(os.fsencode, AWKWARD)]
    assert {name: os.fsencode(found["env"][name]) for name in wanted} == {name: os.fsencode(value) for name, value in wanted.items()}


def test_arguments_of_a_command_arrive_as_they_were_typed(orch: Orch, tmp_path: Path) -> None:
    orch("up", "--no-python", sys.executable, "--", "show.py", *AWKWARD, check=0)
    assert seen(tmp_path / ".orch")["argv"] == ["show.py", *AWKWARD]


def test_a_command_that_is_on_the_tasks_path_alone_runs(orch: Orch, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/some-tool").write_text("#!/bin/sh\necho found\n")
    (tmp_path / "bin/some-tool").chmod(0o755)
    done = orch("up", "--no-python", "some-tool", "--env", f"PATH={tmp_path}/bin:/usr/bin:/bin", check=0)
    assert "found" in done.out
    done = orch("up", "--no-python", "some-tool", "--env", "PATH=/usr/bin:/bin", check=2)
    assert "the command 'some-tool' is not on PATH: /usr/bin:/bin" in done.err


def test_arguments_and_values_of_a_file_arrive_as_they_stand(orch: Orch, tmp_path: Path) -> None:
    texts = [text for text in AWKWARD if text.isprintable() or "\n" in text]
    (tmp_path / "orch.yaml").write_text(json.dumps({"script": "show.py", "args": texts, "defaults": {"env": {"X": texts[4]}}}))
    orch("up", check=0)
    assert seen(tmp_path / ".orch")["argv"] == ["show.py", *texts]
    assert seen(tmp_path / ".orch")["env"]["X"] == texts[4]


@pytest.mark.parametrize("locale", [{}, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}], ids=["UTF-8", "C"])
def test_paths_may_have_any_name(orch: Orch, weird_dir: Path, locale: dict[str, str]) -> None:
    name, home = os.fsdecode(b"s\xff 'x'.py"), weird_dir / os.fsdecode(b'runs \xfe\n"')
    (weird_dir / name).write_text(SHOW + "print('shown')")
    done = orch("up", name, "--home", home, cwd=weird_dir, env=locale, check=0)
    assert "worker-0 | shown" in done.out
    for command in (["ps"], ["ps", "-a"], ["ps", "--json"], ["logs"], ["logs", "--json"], ["wait"], ["down"]):
        assert "Traceback" not in orch(*command, "--home", home, cwd=weird_dir, env=locale, check=0).err
    assert orch("logs", "--home", home, cwd=weird_dir, env=locale, check=0).out == "worker-0 | shown\n"
    missing = orch("up", "no" + name, cwd=weird_dir, env=locale, check=2)
    assert missing.err.startswith("error: the script ")
    if not locale:
        assert os.fsencode(seen(home)["cwd"]) == os.fsencode(weird_dir)
        assert seen(home)["argv"] == [name]
        assert json.loads(orch("ps", "--json", "--home", home, check=0).out)["directory"].startswith(str(home))


@pytest.mark.parametrize("before", ["", "{garbage", '{"cluster": {"worker": ["elsewhere:1"]}, "task": {"type": "worker", "index": 0}}'])
def test_a_tf_config_of_the_shell_makes_no_difference(orch: Orch, tmp_path: Path, before: str) -> None:
    orch("up", "show.py", "-n", "2", env={"TF_CONFIG": before}, check=0)
    config = json.loads(seen(tmp_path / ".orch", "worker-1")["env"]["TF_CONFIG"])
    assert config["task"] == {"type": "worker", "index": 1}
    assert len(config["cluster"]["worker"]) == 2
    for words in (["show.py"], ["--no-python", sys.executable, "--", "show.py"]):
        orch("up", "--strategy", "none", *words, env={"TF_CONFIG": before}, check=0)
        assert "TF_CONFIG" not in seen(tmp_path / ".orch")["env"]


# --- where settings come from -------------------------------------------------------------------


PRECEDENCE = {
    "--workers": "tasks.worker.count",
    "--timeout": "timeouts.run_s",
    "--hang-timeout": "timeouts.hang_s",
    "--cpus": "defaults.devices.cpus",
}
WITHOUT_OPTION = {"ORCH_GRACE": "timeouts.grace_s"}
"""A variable of a setting that has no option."""


def test_flag_beats_set_beats_variable_beats_file_beats_default(orch: Orch, tmp_path: Path) -> None:
    def scale(path: str) -> int:  # a timeout that passes would end the run
        return 1000 if path.startswith("timeouts") else 1

    def values() -> list[float]:
        document = spec_of(tmp_path / ".orch")
        kept = [path.replace("defaults.devices", "tasks.worker.devices") for path in (*PRECEDENCE.values(), *WITHOUT_OPTION.values())]
        return [at(document, path) / scale(path) for path in kept]

    def at(document: Any, path: str) -> Any:
        return reduce(operator.getitem, path.split("."), document)

    def number(factor: int, path: str) -> int:
        return factor * scale(path)

    timeouts = {"grace_s": 2000, "run_s": 2000, "hang_s": 2000}
    file = {"script": "show.py", "tasks": {"worker": {"count": 2}}, "timeouts": timeouts, "defaults": {"devices": {"cpus": 2}}}
    (tmp_path / "orch.yaml").write_text(json.dumps(file))
    names = {flag: "ORCH_" + flag[2:].replace("-", "_").upper() for flag in PRECEDENCE}
    env = {names[flag]: str(number(3, path)) for flag, path in PRECEDENCE.items()}
    env |= {variable: str(number(3, path)) for variable, path in WITHOUT_OPTION.items()}
    given = [word for path in (*PRECEDENCE.values(), *WITHOUT_OPTION.values()) for word in ("--set", f"{path}={number(4, path)}")]
    typed = [word for flag, path in PRECEDENCE.items() for word in (flag, str(number(6, path)))]
    orch("up", check=0)
    assert values() == [2] * 5
    orch("up", env=env, check=0)
    assert values() == [3] * 5
    orch("up", *given, env=env, check=0)
    assert values() == [4] * 5
    orch("up", *given, *typed, env=env, check=0)
    assert values() == [*[6] * 4, 4], "the last has no option"
    orch("up", env=dict.fromkeys(env, ""), check=0)
    assert values() == [2] * 5, "an empty variable says nothing"


def test_a_variable_turns_a_switch_on_and_off(orch: Orch, tmp_path: Path) -> None:
    def tasks(**env: str) -> set[str]:
        planned = json.loads(orch("plan", "show.py", "--json", env=env, check=0).out)
        return {task["task"] for task in planned["tasks"]}

    assert tasks() == {"worker-0"}
    for word in ("1", "true", "yes"):
        assert tasks(ORCH_CHIEF=word) == {"chief-0", "worker-0"}
    (tmp_path / "orch.yaml").write_text("tasks: {chief: 1}\n")
    assert tasks() == {"chief-0", "worker-0"}
    for word in ("0", "false", "off"):
        assert tasks(ORCH_CHIEF=word) == {"worker-0"}


def test_hosts_of_a_flag_beat_those_of_a_variable(orch: Orch, tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("hostA slots=2\n")
    (tmp_path / "others").write_text("hostD\n")
    (tmp_path / "orch.yaml").write_text("backend: {hosts: hostE}\n")

    def hosts(*words: str, **env: str) -> set[str]:
        planned = json.loads(orch("plan", "show.py", "--json", *words, env={"ORCH_HOSTFILE": "hosts", **env}, check=0).out)
        return {task["host"] for task in planned["tasks"]}

    assert hosts() == {"hostA"}
    assert hosts("-H", "hostB:2") == {"hostB"}
    assert hosts("--hostfile", "others", ORCH_HOSTS="hostB") == {"hostD"}
    assert hosts("--set", "backend.hosts=hostC") == {"hostC"}
    assert hosts("--backend", "local") == {"local"}
    assert hosts("-H", "hostB", ORCH_HOSTFILE="missing") == {"hostB"}
    for words, env, said in (
        (["-H", "hostB", "--hostfile", "others"], {}, "both -H and --hostfile name hosts; give one of them"),
        (["--backend", "local", "--hostfile", "others"], {}, "backend.hosts belongs to backend ssh, and this run is local"),
        (["--network", "private"], {}, "--network: must be host: the tasks of backend ssh need the network between the hosts"),
        ([], {"ORCH_HOSTS": "hostB", "ORCH_HOSTFILE": "hosts"}, "both ORCH_HOSTS and ORCH_HOSTFILE name hosts; give one of them"),
    ):
        assert said in orch("plan", "show.py", *words, env=env, check=2).err


def test_settings_of_a_backend_take_that_backend(orch: Orch, tmp_path: Path) -> None:

    def refused(*words: str, **env: str) -> str:
        return orch("up", "show.py", *words, env=env, check=2).err

    local = "and this run is local\n       fix: add --backend slurm"
    said = refused("--nodes", "3", "--time", "1:00:00")
    assert f"error: --nodes: belongs to backend slurm or join, {local}, or --join\n" in said
    assert f" --time: belongs to backend slurm, {local}, or --timeout, which limits every run\n" in said
    assert (
        refused("--image", "x")
        == "error: --image: belongs to backend kubernetes, and this run is local\n       fix: add --backend kubernetes\n"
    )
    assert "--set: backend.namespace and backend.context belong to backend kubernetes, and this" in refused(
        "--set", "backend.namespace=x", "--set", "backend.context=lab"
    )
    assert "--nodes: belongs to backend slurm or join, and this run is on ssh" in refused("--nodes", "2", "-H", "hostA")
    assert "--set: backend.partition belongs to backend slurm, and" in refused("--set", "backend.partition=gpu")
    assert "ORCH_NODES: belongs to backend slurm or join, and this run is local" in refused(ORCH_NODES="2")
    assert "--nodes: belongs to backend slurm" in refused("--backend", "local", "--nodes", "3"), "one source says both"
    assert "backend.partition belongs" in refused("--set", "backend.partition=gpu", "--set", "backend.type=local")
    (tmp_path / "orch.yaml").write_text("backend:\n  nodes: 3\n  time: '2:00:00'\n  setup: [hostname]\n")
    said = refused()
    assert (
        "backend.nodes belongs to backend slurm or join, and this run is local\n       fix: write backend: {type: slurm, nodes: ...}"
        in said
    )
    assert "backend.time belongs to backend slurm, and this run is local\n       fix: write backend: {type: slurm, time: ...}" in said
    assert "orch.yaml:4: backend.setup belongs to backend ssh or slurm, and this run is local" in said
    assert not (tmp_path / ".orch").exists(), "nothing was started"
    for words in (["--backend", "local"], ["--set", "backend.type=local"], ["--set", "backend=local"], ["-n", "1", "--backend", "slurm"]):
        orch("plan", "show.py", *words, check=0)  # a backend that is chosen anew drops what the file says of others
    with pytest.raises(SpecError, match=r"backend\.nodes belongs to backend slurm"):
        read_spec("show.py", {"backend": {"nodes": 2, "type": "local"}}, {})
    assert read_spec(str(tmp_path / "orch.yaml"), {"backend": "local", "script": "show.py"}, {}).backend.type == "local"


def test_a_plan_says_that_the_network_is_private(orch: Orch) -> None:
    said = "the tasks have a network of their own"
    assert [orch("plan", "show.py", *words, check=0).out.count(said) for words in ([], ["--network", "private"])] == [0, 1]


def test_a_system_without_network_namespaces_is_told_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    program = Program("script", "show.py")
    spec = ClusterSpec("one", "none", program, (TaskSpec("worker", 1),), str(tmp_path), network="private")
    (problem,) = local.make().problems(spec)
    assert problem.message == "a private network takes Linux, which has network namespaces"
    assert local.make().problems(replace(spec, network="host")) == ()


def test_env_flags_go_over_the_files_variables(orch: Orch, tmp_path: Path) -> None:
    (tmp_path / "orch.yaml").write_text("script: show.py\ndefaults: {env: {A: file, B: file}}\n")
    orch("up", "--env", "B=flag", "--env", "C.D=dots", env={"A": "shell", "E": "shell"}, check=0)
    env = seen(tmp_path / ".orch")["env"]
    assert [env.get(name) for name in ("A", "B", "C.D", "E")] == ["file", "flag", "dots", "shell"]


def test_a_variable_without_a_value_is_taken_from_the_shell(orch: Orch, tmp_path: Path) -> None:
    (tmp_path / "orch.yaml").write_text("script: show.py\ndefaults: {env: {TOKEN: file}}\n")
    orch("up", "--env", "TOKEN", env={"TOKEN": "a=b"}, check=0)
    assert seen(tmp_path / ".orch")["env"]["TOKEN"] == "a=b"
    assert spec_of(tmp_path / ".orch")["defaults"]["env"]["TOKEN"] == "a=b"
    for name in ("spec.yaml", "plan.json"):
        assert (tmp_path / ".orch/latest" / name).stat().st_mode & 0o777 == 0o600


def test_underscores_are_dashes(orch: Orch, tmp_path: Path) -> None:
    orch("up", "show.py", "--hang_timeout", "77", "--home", "here", check=0)
    assert spec_of(tmp_path / "here")["timeouts"]["hang_s"] == 77


def test_paths_of_a_file_start_at_the_file_and_those_typed_start_here(orch: Orch, tmp_path: Path, script: Script) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "own.py").write_text(SHOW)
    (project / "orch.yaml").write_text("script: own.py\nargs: [from, file]\n")
    orch("up", "-f", "project/orch.yaml", check=0)
    assert seen(tmp_path / ".orch")["argv"] == ["own.py", "from", "file"]
    assert seen(tmp_path / ".orch")["cwd"] == str(project)
    orch("up", "show.py", "-f", "project/orch.yaml", check=0)
    assert seen(tmp_path / ".orch")["argv"] == [str(tmp_path / "show.py"), "from", "file"]
    assert seen(tmp_path / ".orch")["cwd"] == str(project)
    orch("up", "show.py", "-f", "project/orch.yaml", "--", "typed", check=0)
    assert seen(tmp_path / ".orch")["argv"][1:] == ["typed"]
    orch("up", "-f", "project/orch.yaml", "--", check=0)
    assert seen(tmp_path / ".orch")["argv"] == ["own.py"]
    assert not (project / ".orch").exists()


@pytest.mark.parametrize(
    ("file", "words", "env"),
    [("{workdir: src}", (), {}), ("{}", ("--set", "workdir=src"), {}), ("{}", (), {"ORCH_WORKDIR": "src"})],
    ids=["file", "set", "variable"],
)
def test_a_typed_script_starts_here_whatever_sets_the_tasks_directory(
    orch: Orch, tmp_path: Path, file: str, words: tuple[str, ...], env: dict[str, str]
) -> None:
    (tmp_path / "project/src").mkdir(parents=True)
    (tmp_path / "project/own.py").touch(0o700)
    (tmp_path / "project/orch.yaml").write_text(file)
    for place, typed in (("project", "own.py"), (".", "project/own.py"), ("project/src", "../own.py")):
        spec = os.path.relpath(tmp_path / "project/orch.yaml", tmp_path / place)
        for chosen in ((), ("--no-python",)):
            name = f"./{typed}" if chosen and place == "project" else typed
            found = json.loads(orch("plan", "--json", "-f", spec, *chosen, name, *words, env=env, cwd=tmp_path / place, check=0).out)
            program = found["tasks"][0]["program"]["target"]
            assert found["workdir"] == str(tmp_path / "project/src")
            assert os.path.normpath(tmp_path / "project/src" / program) == str(tmp_path / "project/own.py")


def test_a_spec_that_comes_out_of_a_pipe_has_the_directory_of_the_shell(orch: Orch, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real/show.py").touch()
    (tmp_path / "real/orch.yaml").write_text("script: show.py\n")
    (tmp_path / "link.yaml").symlink_to("real/orch.yaml")
    command = [sys.executable, "-m", "orchestrator", "plan", "--json", "-f"]
    done = subprocess.run(["bash", "-c", '"$@" <(echo script: show.py)', "bash", *command], cwd=tmp_path, capture_output=True, timeout=100)
    assert json.loads(done.stdout)["workdir"] == str(tmp_path), done.stderr
    text = (tmp_path / "real/orch.yaml").read_text()
    with tempfile.TemporaryFile(dir=tmp_path / "real") as deleted:
        deleted.write(text.encode())
        deleted.seek(0)
        done = subprocess.run([*command, "/dev/stdin"], stdin=deleted, cwd=tmp_path, capture_output=True, timeout=100)
    assert json.loads(done.stdout)["workdir"] == str(tmp_path), done.stderr
    for name in ("link.yaml", "real/orch.yaml"):
        assert json.loads(orch("plan", "--json", "-f", name, check=0).out)["workdir"] == str(tmp_path / "real")


def test_a_typed_script_keeps_its_name_where_the_tasks_start_here(orch: Orch, tmp_path: Path) -> None:
    (tmp_path / "here").symlink_to(tmp_path)
    for words in ((), ("--set", "workdir=."), ("--set", "workdir=here"), ("--set", f"workdir={tmp_path!s}")):
        found = json.loads(orch("plan", "--json", "show.py", *words, check=0).out)
        assert found["tasks"][0]["program"]["target"] == "show.py"


def test_a_module_runs_as_python_runs_it(orch: Orch, tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("")
    (tmp_path / "package" / "tool.py").write_text(SHOW)
    orch("up", "-m", "package.tool", "--", "x", check=0)
    assert seen(tmp_path / ".orch")["argv"] == [str(tmp_path / "package" / "tool.py"), "x"]
    orch("up", env={"ORCH_MODULE": "package.tool"}, check=0)
    assert spec_of(tmp_path / ".orch")["module"] == "package.tool"
    (tmp_path / "orch.yaml").write_text("script: show.py\n")
    orch("up", "-m", "package.tool", check=0)
    assert "script" not in spec_of(tmp_path / ".orch")
    orch("up", "show.py", env={"ORCH_MODULE": "package.tool"}, check=0)
    assert "module" not in spec_of(tmp_path / ".orch"), "a script that is typed beats a variable"


@pytest.mark.parametrize(
    "settings",
    [{"defaults": {"env": {"PYTHONPATH": "src"}}}, {"tasks": {"worker": {"count": 1, "env": {"PYTHONPATH": "lib:src"}}}}],
    ids=["defaults", "tasks"],
)
def test_a_module_is_looked_for_where_the_specs_variables_lead(
    orch: Orch, tmp_path: Path, script: Script, settings: dict[str, Any]
) -> None:
    """Also if nothing is imported before the fork, which the variables would be wanted for as well."""
    (tmp_path / "src/tool").mkdir(parents=True)
    script(SHOW, "src/tool/__main__.py")
    (tmp_path / "orch.yaml").write_text(json.dumps({"preload": [], "module": "tool", **settings}))
    orch("up", check=0)
    assert seen(tmp_path / ".orch")["argv"] == [str(tmp_path / "src/tool/__main__.py")]
    assert "no module named 'other' in" in orch("up", "-m", "other", check=2).err


def test_runs_are_kept_where_the_flag_or_else_the_variable_says(orch: Orch, tmp_path: Path) -> None:
    home = {"ORCH_HOME": str(tmp_path / "variable")}
    orch("up", "show.py", env=home, check=0)
    orch("up", "show.py", "--home", "flag", env=home, check=0)
    assert len(list((tmp_path / "variable" / "runs").iterdir())) == 1
    assert len(list((tmp_path / "flag" / "runs").iterdir())) == 1
    assert not (tmp_path / ".orch").exists()
    assert len(json.loads(orch("ps", "-a", "--json", env=home, check=0).out)) == 1


def test_without_a_word_about_it_they_are_kept_where_orch_was_started_as_its_help_says(orch: Orch, tmp_path: Path) -> None:
    (tmp_path / "project/src").mkdir(parents=True)
    (tmp_path / "project/orch.yaml").write_text("name: elsewhere\n")
    orch("up", "show.py", "-f", "project/orch.yaml", "--set", "workdir=src", check=0)
    assert seen(tmp_path / ".orch")["cwd"] == str(tmp_path / "project/src")
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob(".orch")] == [".orch"]


# --- what is printed ----------------------------------------------------------------------------


def test_json_is_an_object_a_line_and_the_verdict_is_last(orch: Orch, script: Script) -> None:
    script("import sys\nprint('noise')\nsys.exit(3)\n", "fail.py")
    for words, code in ((["show.py", "-n", "2"], 0), (["fail.py"], 3)):
        done = orch("up", "--json", *words, check=code)
        lines = [json.loads(line) for line in done.out.splitlines()]
        assert [line["event"] for line in lines].count("verdict") == 1
        assert [line["event"] for line in lines[:2]] == ["run_begun", "allocated"]
        verdict = lines[-1]
        assert (verdict["event"], verdict["exit_code"]) == ("verdict", code)
        times = [line[key] for line in lines for key in line if key == "at" or key.endswith("_at")]
        assert len(times) >= len(lines)
        assert all(at is None or datetime.fromisoformat(at).tzinfo for at in times)
        assert set(verdict) >= {"run", "outcome", "attempt", "started_at", "ended_at", "cause"}
        assert (verdict["cause"] or {}).get("code") == (code or None)
        assert "noise" not in done.out


def test_json_has_what_is_said_too(orch: Orch) -> None:
    done = orch("up", "--json", "show.py", "--set", "preload=[there_is_none]", check=0)
    said = [line["text"] for line in map(json.loads, done.out.splitlines()) if line["event"] == "run_noted"]
    assert any("TensorFlow is imported again, which takes longer: importing there_is_none failed" in text for text in said)


def test_json_of_a_run_that_cannot_start_ends_with_its_verdict(orch: Orch) -> None:
    done = orch("up", "show.py", "--json", "--python", "/bin/true", check=125)
    verdict = json.loads(done.out.splitlines()[-1])
    assert (verdict["event"], verdict["outcome"], verdict["exit_code"]) == ("verdict", "broken", 125)
    assert verdict["cause"]["what"] in done.err
    refused = orch("up", "missing.py", "--json", check=2)
    assert [line["event"] for line in map(json.loads, refused.out.splitlines())][-1] == "not_planned"


@pytest.mark.parametrize("words", [["plan", "show.py", "-n", "3000"], ["plan", "show.py", "-n", "3000", "--json"]], ids=["text", "json"])
def test_a_reader_that_has_seen_enough_ends_a_listing_quietly(orch: Orch, words: list[str]) -> None:
    read_fd, write_fd = os.pipe()
    running = orch.start(*words, stdout=write_fd)
    os.close(write_fd)
    with open(read_fd, "rb") as pipe:
        assert pipe.read(10)
    done = running.wait(check=141)
    assert [line for line in done.err.splitlines() if not line.startswith("orch: compute threads: ")] == []


@pytest.mark.parametrize(
    ("words", "closed"),
    [*(("up show.py", closed) for closed in ("2>&-", "<&- >&- 2>&-")), ("up show.py --json", ">&-"), ("up show.py -d", "<&- >&- 2>&-")],
)
def test_closed_standard_streams_are_no_trouble(tmp_path: Path, closed: str, words: str) -> None:
    def run(command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["sh", "-c", f"exec '{sys.executable}' -m orchestrator {command}"], cwd=tmp_path, capture_output=True, text=True, timeout=200
        )

    done = run(f"{words} {closed}")
    assert done.returncode == 0, done
    assert "Traceback" not in done.stderr
    assert run("wait").returncode == 0
    latest = tmp_path / ".orch" / "latest"
    held = json.loads((latest / "lock").read_text())
    assert set(held) == {"directory", "host", "pid"}, "a stream has been written to a file of the run"
    assert all(json.loads(line) for line in (latest / "events.jsonl").read_text().splitlines())
    assert run(f"up missing.py {closed}").returncode == 2


@pytest.mark.parametrize(
    ("command", "env"),
    [*((word, {"COLUMNS": "20"}) for word in ("", "up", "plan", "ps", "init")), ("up", {"LC_ALL": "C"}), ("up", {"TERM": "dumb"})],
)
def test_help_is_there_in_any_terminal(orch: Orch, env: dict[str, str], command: str) -> None:
    done = orch(*filter(None, [command]), "--help", env=env, check=0)
    assert done.out.startswith("Usage: orch")
    assert done.err == ""
    assert "\x1b" not in done.out
    short = orch(*filter(None, [command]), "-h", env=env, check=0).out
    assert len(short) < len(done.out) if command == "up" else short == done.out


def test_output_without_a_terminal_has_no_colour_unless_it_is_asked_for(orch: Orch, script: Script) -> None:
    script("print('hello')\n", "hello.py")
    assert "\x1b" not in orch("up", "hello.py", check=0).out
    assert "\x1b" in orch("up", "hello.py", "--color", "always", check=0).out
    assert "\x1b" in orch("up", "hello.py", env={"ORCH_COLOR": "always"}, check=0).out
    assert "\x1b" not in orch("logs", env={"NO_COLOR": "1"}, check=0).out
    script("raise ModuleNotFoundError(\"No module named 'x'\")\n", "fails.py")
    failed = orch("up", "fails.py", "--color", "always", check=1).err
    assert re.search(r"\n\x1b\[1;31morch: fails-\S+ failed after .*\x1b\[0m\n\x1b\[1;31morch:   first failure: worker-0", failed)
    assert f"\x1b[1morch:   fix: a module of yours: --env PYTHONPATH=DIR; a package: {sys.executable} -m pip install x " in failed
    assert "\x1b" not in orch("up", "fails.py", check=1).err


def test_quiet_shows_the_verdict_only_and_only_shows_one_task(orch: Orch, script: Script) -> None:
    script("import os\nprint(os.environ['ORCH_TASK'])\n", "name.py")
    quiet = orch("up", "name.py", "-q", "-n", "2", check=0)
    assert quiet.out == ""
    assert quiet.err.count("\n") == 1
    assert "succeeded" in quiet.err
    assert orch("up", "name.py", env={"ORCH_QUIET": "1"}, check=0).out == ""
    one = orch("up", "name.py", "-n", "3", "--only", "worker-1", check=0)
    assert one.out == "worker-1 | worker-1\n"


@pytest.mark.parametrize(("options", "told"), [(("--ps", "1"), True), (("-n", "2"), True), (("--strategy", "none"), False)])
def test_a_script_that_makes_its_own_cluster_is_told_of_strategy_none(
    orch: Orch, script: Callable[..., Path], options: tuple[str, ...], told: bool
) -> None:
    script("def create_in_process_cluster(workers, ps):\n    pass\n\ncreate_in_process_cluster(2, 1)\n", "guide.py")
    done = orch("up", "guide.py", *options)
    assert ("guide.py seems to make a cluster of its own in one process" in done.err) is told


LATE = {
    "import no_such_module": "the module no_such_module is not installed, so the run would fail there: install it with ",
    "model.save('a_directory')": "save() of Keras 3 fails for 'a_directory': end the name with .keras or .h5",
    "model.save('model', save_format='tf')": "save() of Keras 3 fails for 'model': end the name with .keras or .h5",
}


@pytest.mark.parametrize("last", LATE)
def test_what_would_end_a_run_after_its_training_is_told_before_the_start(orch: Orch, script: Script, last: str) -> None:
    script(
        "class Sequential:\n    def compile(self): ...\n    def save(self, *_, **__):\n        raise ValueError('no such ending')\n",
        "keras.py",
    )
    script(f"import keras\nmodel = keras.Sequential()\nmodel.compile()\nprint('trained')\n{last}\n", "train.py")
    done = orch("up", "train.py", "--strategy", "none", "--set", "preload=[json]", check=1)
    assert done.out == "worker-0 | trained\n"
    assert 0 < done.err.index(f"orch: train.py:5: {LATE[last]}") < done.err.index("orch: worker-0 failed (exit code 1)")


def test_without_tensorflow_a_program_that_imports_it_is_refused(orch: Orch, script: Script, tmp_path: Path) -> None:
    """With an interpreter of its own, which has only the standard library."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "bare")], check=True)
    script("import tensorflow as tf\nprint(tf)\n", "uses.py")
    done = orch("up", "uses.py", "-n", "2", "--python", str(tmp_path / "bare/bin/python"), check=2)
    assert "bare/bin/python has no TensorFlow, which uses.py:1 imports: " in done.err
    how = (
        "bare/bin/python -m pip install tensorflow-cpu; or"
        if sys.version_info[:2] <= NEWEST_PYTHON
        else "there is no TensorFlow for Python"
    )
    assert how in done.err
    assert "choose another Python with --python" in done.err


def test_settings_from_stdin_and_with_tabs(orch: Orch, tmp_path: Path) -> None:
    given = b"script: show.py\ntasks: {worker: 3}\n"
    command = [sys.executable, "-m", "orchestrator", "plan", "-f", "-", "--json"]
    done = subprocess.run(command, input=given, cwd=tmp_path, capture_output=True, timeout=100, check=True)
    assert [task["task"] for task in json.loads(done.stdout)["tasks"]] == ["worker-0", "worker-1", "worker-2"]
    (tmp_path / "tab.yaml").write_text("script: show.py\ntasks:\n\tworker: 2\n")
    assert (
        orch("plan", "-f", "tab.yaml", check=2).err == "error: tab.yaml:3: a tab stands before the text\n       fix: indent with spaces\n"
    )
