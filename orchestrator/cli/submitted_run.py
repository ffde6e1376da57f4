"""`orch up` at a place whose engine runs the controller: what the command shows once the run is submitted, and what the keys do."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from typing import TYPE_CHECKING

import click

from worker.machine.clock import now

from ..control import engine_jobs
from ..control.requests import ask_stop
from ..control.signals import ENDINGS, release_signals
from ..controller import Ended, refusal
from ..errors import OrchError
from ..model.policy.submission import Submission
from ..model.state.events import RunNoted
from ..record.report import report_again
from ..record.run_directory import RunDir
from ..record.run_files import size_of
from ..record.run_progress import Progress, read_cluster
from ..record.run_view import RunView
from ..record.text.event_messages import say
from ..record.text.format import json_text

if TYPE_CHECKING:
    from .viewers import JsonLines, Terminal

MOST_ASKED = 2
"""How often a key asks for the end of the run: first gracefully, then at once. With the next key the command leaves the run as it is."""


def start(run: RunDir, submitted: Submission, show: JsonLines | Terminal | None, *, as_json: bool) -> int:
    """Shows a run that was just submitted until its end; without `show`, only says that it was. Returns the exit code.

    The caller blocks the signals: they wait until this function takes them.
    """
    engine_jobs.attach(run)
    if show is not None:
        show.say(f"run {run.run_id}: submitted as {submitted.words}")
        return _Followed(run, show).follow()
    if (taken := signal.sigtimedwait(ENDINGS, 0)) is not None:  # it came while the run was being submitted
        why, code = ENDINGS[signal.Signals(taken.si_signo)]
        ask_stop(run, why, code=code)
        return code
    if as_json:
        click.echo(json_text({"run": run.run_id, "directory": str(run.path), "job": submitted.job}))
    else:
        click.echo(run.run_id)
        say(f"submitted as {submitted.words}; orch logs -f {run.run_id} follows it, orch down {run.run_id} ends it")
    release_signals()
    return 0


class _Followed:
    """A run that the user looks at from `orch up`."""

    def __init__(self, run: RunDir, show: JsonLines | Terminal) -> None:
        self._run, self._show = run, show
        self._progress, self._view = Progress(run), RunView(run, 0.0)
        self._shown: dict[tuple[str, int, str], int] = {}
        """The sizes up to which the files of output were given to the viewer."""
        self._words = ""
        self._asked = 0
        self._is_over = False
        self._failure: Exception | None = None
        """Why it is no longer known whether the run goes on."""
        # As in `signals.handle_signals`: nohup leaves a SIGHUP pending that must end nothing.
        self._taken = [one for one in ENDINGS if one != signal.SIGHUP or signal.getsignal(one) != signal.SIG_IGN]

    def follow(self) -> int:
        """Shows the run until its end, or until the user leaves it. Returns the exit code."""
        threading.Thread(target=self._watch, daemon=True).start()
        while True:
            is_over = self._is_over  # read first: a run that is over writes no more
            self._look()
            if is_over:
                return self._end()
            self._say_words()
            taken = signal.sigtimedwait(self._taken, self._view.pause_s)
            if taken is not None and (code := self._on_signal(taken.si_signo)):
                return code

    def _watch(self) -> None:
        """Finds out whether the run goes on, in a thread of its own: an engine may answer late, and keys have their effect meanwhile."""
        try:
            is_alive = True
            while is_alive:
                with contextlib.suppress(OSError):  # a file server has its moments
                    is_alive = self._run.is_alive()
                time.sleep(self._view.pause_s if is_alive else 0.0)
        except Exception as error:
            self._failure = error
        self._is_over = True

    def _look(self) -> None:
        for step in self._progress.steps():
            self._show.on_event(*step)
        for key, path in self._view.outputs().items():
            if self._shown.get(key, 0) != (size := size_of(path)):
                self._shown[key] = size
                self._show.on_output(*key)

    def _say_words(self) -> None:
        """Shows what the engine says of the job, whenever this changes."""
        heard = self._run.heard()
        words = heard.trouble or heard.word.words
        if words and words != self._words and heard.word.state != "ended":
            cluster = self._progress.cluster
            self._show.on_event(cluster, cluster, RunNoted(heard.describe(now()), now()))
        self._words = words

    def _on_signal(self, number: int) -> int:
        """Asks for the end of the run, as the signals of an attached run on this machine do. Returns the exit code if the user leaves."""
        why, code = ENDINGS[signal.Signals(number)]
        if number == signal.SIGHUP:  # no one looks any more; the run needs no one
            return code
        self._asked += 1
        if self._asked > MOST_ASKED:
            self._show.abandon()
            say(f"{self._run.run_id} goes on; orch down {self._run.run_id} ends it")
            return code
        threading.Thread(target=self._stop, args=(why, code, self._asked == MOST_ASKED), daemon=True).start()
        return 0

    def _stop(self, why: str, code: int, at_once: bool) -> None:
        """Asks for the end; in a thread, as `_watch`."""
        try:
            ask_stop(self._run, why, code=code, now=at_once)
        except OrchError as error:
            self._show.say(str(error))

    def _end(self) -> int:
        if self._failure is not None:
            raise self._failure
        verdict, cluster = self._run.read_verdict(), read_cluster(self._run)
        if verdict is None:
            self._show.abandon()
            raise OrchError("\n".join(report_again(self._run)))
        ended = Ended(self._run, cluster, verdict, refusal(cluster, verdict))
        self._show.end(ended)
        if ended.error is not None:
            raise ended.error
        return verdict.exit_code
