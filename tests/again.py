"""A pytest plugin (`-p tests.again`): tests that failed run once more, each alone, if there are at most three of them.

One that passes then is counted as `flaky`, and named with its failure: the test, or what it tests, depends on chance or on load. That is a
bug, and the suite has just met it. One that fails again fails the suite, as more than three failures do. The last line is pytest's summary.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

MOST = 3
"""So many may be chance; more of them have a reason in common."""
FLAKY = "flaky"


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    config = session.config
    terminal: pytest.TerminalReporter | None = config.pluginmanager.get_plugin("terminalreporter")
    if hasattr(config, "workerinput") or terminal is None or session.exitstatus != pytest.ExitCode.TESTS_FAILED:
        return
    if session.shouldfail or session.shouldstop:  # --exitfirst, --maxfail: tests are left that have not run
        return
    failed = sorted({report.nodeid for kind in ("failed", "error") for report in terminal.stats.get(kind, ())})
    if len(failed) > MOST:
        return
    flaky = {test for test in failed if _passes_alone(config, test)}
    for kind in ("failed", "error"):
        reports = terminal.stats.pop(kind, [])
        for category, chosen in (
            (kind, [report for report in reports if report.nodeid not in flaky]),
            (FLAKY, [report for report in reports if report.nodeid in flaky]),
        ):
            if chosen:
                terminal.stats.setdefault(category, []).extend(chosen)
    if flaky == set(failed):
        session.exitstatus = pytest.ExitCode.OK


def _passes_alone(config: pytest.Config, test: str) -> bool:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(config.rootpath)]
    if config.inipath is not None:
        command += ["-c", str(config.inipath)]
    print(f"\n{test} has failed; once more, alone:", flush=True)
    return subprocess.run([*command, test], cwd=config.rootpath, env=environment, check=False).returncode == 0


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = terminalreporter.stats.get(FLAKY, [])
    if not reports:
        return
    terminalreporter.section("FLAKY", red=True)
    for report in reports:
        terminalreporter.write_sep("_", report.head_line or report.nodeid)
        terminalreporter.write_line(report.longreprtext)
    for test in sorted({report.nodeid for report in reports}):
        terminalreporter.write_line(f"FLAKY: {test}: failed among the others and passed alone: a bug to be found next", red=True)
