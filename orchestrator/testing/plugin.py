"""The pytest plugin: the fixtures `orch_cluster` and `orch_run`, the markers `orch` and `orch_everywhere` (docs/testing.md).

Where orch is installed, pytest imports this module (entry point ``pytest11``), also for suites that do not use orch. So the module imports
nothing else of orch before a test needs a cluster.
"""

from __future__ import annotations

import contextlib
import dis
import inspect
import itertools
import os
import sys
import unittest
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from types import TracebackType

    from .clusters import Cluster
    from .scripts import ScriptRun
    from .session import Session

TASKS = ("workers", "ps", "chief", "evaluator")
"""The options of the markers for the numbers of tasks."""
LISTS = (*TASKS, "cpus", "strategy")
"""The options of the markers that may be a list: the test then runs once with each value of the list."""
FILLED = "strategy"
"""The parameter that gets the cluster's strategy in each task; see `worker.task.sent_function`."""
CLUSTER, EVERYWHERE = "orch", "orch_everywhere"
CAPTURES = ("capsys", "capfd", "capsysbinary", "capfdbinary", "caplog")
"""Fixtures that hold what the test's own process writes."""
MISTAKES: pytest.StashKey[list[str]] = pytest.StashKey()
"""The mistakes in the markers of the tests of the file or class that is being collected."""
OURS = tuple(f"{Path(__file__).parents[2] / package}{os.sep}" for package in ("orchestrator", "worker"))
"""The beginnings of the names of orch's own files."""
RAISE = dis.opmap["RAISE_VARARGS"]
"""The instruction of a `raise` statement."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("orch", "TensorFlow clusters of orch")
    group.addoption(
        "--orch-timeout",
        type=_seconds,
        metavar="TIME",
        help="how long a function may take in the tasks of a cluster, and a run of orch_run, if the test sets no timeout (default: 120)",
    )
    group.addoption(
        "--orch-logs", action="store_true", help="add the output of each task to the report of every test (-rA shows the reports)"
    )
    group.addoption("--orch-keep", action="store_true", help="keep the directories with the output of all tasks, and show their paths")


def _seconds(text: str) -> float:
    """The value of ``--orch-timeout``. An error of argparse where the text is no time."""
    from ..model.settings.durations import seconds_of

    found = seconds_of(text)
    return float(text) if found is None else found


def pytest_configure(config: pytest.Config) -> None:
    options = "workers, ps, chief, evaluator, strategy, cpus, devices, env, timeout, reuse, ..."
    described = {
        CLUSTER: "the cluster of orch_cluster and orch_run, or the defaults of those that orch_cluster makes: orch(workers=[1, 2])",
        EVERYWHERE: "the body of this test runs in every task of such a cluster: orch_everywhere(workers=2)",
    }
    for name, what in described.items():
        config.addinivalue_line("markers", f"{name}({options}): {what}")


# --- markers -------------------------------------------------------------------------------------


def _marked(node: pytest.Item | pytest.Function) -> dict[str, Any]:
    """The keywords of all markers of a test. If two markers have the same keyword, the marker that is nearer to the test counts."""
    found: dict[str, Any] = {}
    for name in (CLUSTER, EVERYWHERE):
        for marker in reversed(list(node.iter_markers(name))):
            found.update(marker.kwargs)
    return found


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    item = metafunc.definition
    _want_cluster(item)
    marked = _marked(item)
    lists = {name: value for name, value in marked.items() if name in LISTS and isinstance(value, list | tuple)}
    chosen = [dict(zip(lists, values, strict=True)) for values in itertools.product(*lists.values())]
    if mistakes := list(dict.fromkeys(filter(None, (_mistake(item, {**marked, **one}) for one in chosen)))):
        item.config.stash.setdefault(MISTAKES, []).extend(mistakes)
        return
    chooses = [name for name in ("orch_cluster", "orch_run") if name in metafunc.fixturenames]
    if lists and chooses:
        ids = ["-".join(f"{name}={value}" for name, value in one.items()) for one in chosen]
        metafunc.parametrize(chooses, [(one,) * len(chooses) for one in chosen], ids=ids, indirect=True)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """The collection of a file, or of a class, fails with all mistakes in the markers of its tests: a test itself may never use them."""
    report = yield
    if mistakes := collector.config.stash.get(MISTAKES, []):
        report.outcome, report.longrepr, report.result = "failed", "\n".join(mistakes), []
        mistakes.clear()  # pytest collects a file while it collects the session
    return report


def _want_cluster(item: pytest.Function) -> None:
    """Give a test with the marker `orch_everywhere` the fixture `orch_cluster`, for which the test has no parameter."""
    if item.get_closest_marker(EVERYWHERE) is not None and "orch_cluster" not in item.fixturenames:
        item.fixturenames.append("orch_cluster")


def _mistake(item: pytest.Function, options: dict[str, Any]) -> str:
    """Return what is wrong with the markers of a test, with the name of the test; empty if nothing is."""
    names = [name for name in (EVERYWHERE, CLUSTER) if item.get_closest_marker(name) is not None]
    if not names:
        return ""
    wrong = ""
    if any(marker.args for name in names for marker in item.iter_markers(name)):
        wrong = f"@pytest.mark.{names[0]} takes keywords, as in @pytest.mark.{names[0]}(workers=2)"
    elif names[0] == CLUSTER and (unused := _unused(item)):
        wrong = unused
    elif names[0] == EVERYWHERE and not any(name in options for name in TASKS):
        wrong = f"@pytest.mark.{EVERYWHERE} needs a number of tasks, as in @pytest.mark.{EVERYWHERE}(workers=2)"
    elif names[0] == EVERYWHERE and (stays := [name for name in inspect.signature(item.obj).parameters if name in CAPTURES]):
        how = f"call a function with orch_cluster.run in a test, whose {stays[0]} has what the tasks write"
        wrong = f"{stays[0]} belongs to the process of the test, and @pytest.mark.{EVERYWHERE} runs the test in the tasks: {how}"
    else:
        from .pool import find_mistakes

        wrong = find_mistakes(options, f"@pytest.mark.{names[0]}", for_cluster="orch_run" not in item.fixturenames)
    return f"{item.nodeid}: {wrong}" if wrong else ""


def _unused(item: pytest.Function) -> str:
    """Return what is wrong with a marker on the test itself whose cluster the test never asks for; empty: nothing.

    A marker of a class or a module may be for other tests there. A test may also ask for a fixture when it runs.
    """
    if not any(marker.name == CLUSTER for marker in item.own_markers) or {"orch_cluster", "orch_run"}.intersection(item.fixturenames):
        return ""
    fixtures = [definition for known in item._fixtureinfo.name2fixturedefs.values() for definition in known]
    asking = [fixture.func for fixture in fixtures if "request" in fixture.argnames and not fixture.func.__module__.startswith("_pytest.")]
    if asking or "request" in inspect.signature(item.obj).parameters:
        return ""
    both = f"take the parameter orch_cluster (or orch_run), or write @pytest.mark.{EVERYWHERE}"
    return f"the test has @pytest.mark.{CLUSTER} and uses neither orch_cluster nor orch_run, so it has no cluster: {both}"


class _NoCluster:
    """Holds what `orch_cluster` is if no marker says how many tasks there are: a function that makes clusters."""

    def __init__(self, item: pytest.Item, options: dict[str, Any]) -> None:
        self._item, self._options = item, options

    def __call__(self, **more: Any) -> Cluster:
        return _make(self._item, {**self._options, **more})

    def __repr__(self) -> str:
        return "<orch_cluster: a function, as no marker says workers=>"

    def __getattr__(self, name: str) -> Any:
        how = "write @pytest.mark.orch(workers=2) above the test, or with orch_cluster(workers=2) as c: in it"
        raise AttributeError(f"orch_cluster has no {name!r} here, because no marker of this test says workers=: {how}")


# --- fixtures ------------------------------------------------------------------------------------


@pytest.fixture
def orch_cluster(request: pytest.FixtureRequest) -> Iterator[Cluster | Callable[..., Cluster]]:
    """A real cluster of TensorFlow, whose tasks run the functions of the test: c.run(step) gives the value of each task (docs/testing.md).

    The marker @pytest.mark.orch(workers=2) says which, and the cluster runs when the test begins; a cluster that cannot start fails the
    test. Without a marker, the fixture is a function: with orch_cluster(workers=2, ps=1) as c. If a marker has no numbers of tasks, its
    other keywords are the defaults of each cluster.
    """
    options = {**_marked(request.node), **getattr(request, "param", {})}
    if not any(name in options for name in TASKS):
        yield _NoCluster(request.node, options)
        return
    from ..errors import OrchError

    c = _make(request.node, options)
    try:
        c.__enter__()
    except OrchError as error:
        pytest.fail(str(error), pytrace=False)
    with contextlib.closing(c):
        yield c


def _make(item: pytest.Item, options: dict[str, Any]) -> Cluster:
    from .clusters import cluster
    from .session import Session

    given = item.config.option
    if given.orch_timeout is not None:
        options = {"timeout": given.orch_timeout, **options}
    Session.get().keeps = given.orch_keep
    return cluster(**options)


@pytest.fixture
def orch_run(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., ScriptRun]:
    """orch_run("train.py", "--epochs", 1, workers=2) runs a script as `orch up` does, in this test's tmp_path, and returns the result."""
    from .scripts import run_script

    marked = {**_marked(request.node), **getattr(request, "param", {})}
    options = {name: value for name, value in marked.items() if name not in ("reuse", "grace")}
    if request.config.option.orch_timeout is not None:
        options.setdefault("timeout", request.config.option.orch_timeout)

    def run(script: str | os.PathLike[str], *args: str | int | float, **settings: Any) -> ScriptRun:
        """`settings`: as for `orchestrator.launch`. The path of the script is relative to this test's tmp_path, to the directory in which
        pytest was started, or to the directory of the test's file."""
        places = dict.fromkeys((tmp_path, Path.cwd(), request.path.parent, request.config.rootpath))
        found = next((place / script for place in places if (place / script).exists()), None)
        if found is None:
            raise FileNotFoundError(f"orch_run: there is no script {os.fspath(script)!r} in {', '.join(map(str, places))}")
        return run_script(found, *args, home=tmp_path / ".orch", **{"workdir": tmp_path, **options, **settings})

    return run


# --- the test's body in the tasks ------------------------------------------------------------------


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Refuse tests whose body cannot run in tasks. If the tests have no fixture `strategy`, each task fills in this argument."""
    if session := _session():
        session.recent.clear()
    if not isinstance(item, pytest.Function) or item.get_closest_marker(EVERYWHERE) is None:
        return
    if (item.cls is not None and issubclass(item.cls, unittest.TestCase)) or inspect.iscoroutinefunction(item.obj):
        pytest.fail(f"@pytest.mark.{EVERYWHERE} is not for an async test, nor for a unittest.TestCase", pytrace=False)
    _want_cluster(item)  # again: for a parametrized test, pytest has made a new list of fixtures
    if FILLED in item.fixturenames and not item.session._fixturemanager.getfixturedefs(FILLED, item):
        item.fixturenames.remove(FILLED)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    __tracebackhide__ = True
    if pyfuncitem.get_closest_marker(EVERYWHERE) is None:
        return None
    given = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters if name in pyfuncitem.funcargs}
    c: Any = pyfuncitem.funcargs["orch_cluster"]
    from ..errors import UsageError

    try:
        c.run(pyfuncitem.obj, **given)
    except UsageError as error:
        pytest.fail(str(error), pytrace=False)
    return True


# --- sections of a report, and the end ---------------------------------------------------------------


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    if call.excinfo is not None and item.get_closest_marker(EVERYWHERE) is None and not item.config.option.fulltrace:
        _end_in_the_test(call.excinfo.tb)
    failures = sys.modules.get("orchestrator.testing.failures")
    if call.excinfo is not None and failures is not None and isinstance(cause := call.excinfo.value.__cause__, failures.TaskFailed):
        cause.leave_out(call.excinfo.tb)  # pytest shows the same frames below
    else:
        cause = None
    report = yield
    if cause is not None and (crash := getattr(report.longrepr, "reprcrash", None)) is not None:
        crash.message = f"{cause.task}: {crash.message}"  # in the line of pytest's summary
    session, options = _session(), item.config.option
    if session and (report.failed or (options.orch_logs and report.when == "call")):
        for task in [task for cluster in session.recent for task in cluster.tasks.values()]:
            # pytest has captured no output of the task with -s, or in a test that reads the output itself.
            prefix = f"[{task.name}] "
            is_missing = prefix not in report.capstdout
            if options.orch_logs:  # once: not among the captured lines as well
                report.sections = [(name, _without(text, prefix)) for name, text in report.sections]
            if (options.orch_logs or is_missing) and (text := task.logs if options.orch_logs else task.own_logs):
                report.sections.append((f"orch: {task.name}", text))
        if options.orch_keep:
            report.sections.append(("orch: files", f"{session.path}\n"))
    return report


def _without(text: str, prefix: str) -> str:
    """The text without the lines that begin so."""
    return "".join(line for line in text.splitlines(keepends=True) if not line.startswith(prefix))


def _end_in_the_test(traceback: TracebackType) -> None:
    """Let the traceback of an exception that orch has raised for its user end where the user's code calls orch.

    An exception that comes from anywhere else inside orch keeps all frames, as does each with pytest's ``--full-trace``.
    """
    steps = [traceback]
    while steps[-1].tb_next is not None:
        steps.append(steps[-1].tb_next)
    raised = steps[-1].tb_frame.f_code.co_code[steps[-1].tb_lasti] == RAISE
    while raised and len(steps) > 1 and steps[-1].tb_frame.f_code.co_filename.startswith(OURS):
        steps.pop()
        steps[-1].tb_next = None


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish() -> None:
    """End the session before a worker of pytest-xdist says that it has finished: from then on it is interrupted after five seconds."""
    pytest_unconfigure()


def pytest_unconfigure() -> None:
    if session := _session():
        session.end()


def _session() -> Session | None:
    """The session of this process, if there has been a cluster."""
    module = sys.modules.get("orchestrator.testing.session")
    return module.Session.current() if module is not None else None
