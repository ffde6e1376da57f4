"""The page of `orch report`: small, whole by itself, deaf to hostile words, and drawn by a real browser without an error."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import zipfile
from html.parser import HTMLParser
from pathlib import Path

import pytest

from orchestrator.errors import UsageError
from orchestrator.views import charts, report_page, run_bundle, run_story
from orchestrator.views.run_story import Reported, Stretch
from orchestrator.views.story_gather import gather
from tests.made_up_run import BEGAN, MadeUpRun

SECRET = "hunter2"
ENDS = (b'{"event":"task_exited"', b'{"event":"task_swept"')
VOID = {"meta", "br", "img", "link", "input", "hr"}
BROWSER = next((path for name in ("chromium-headless-shell", "chromium", "google-chrome") if (path := shutil.which(name))), None)


class Page(HTMLParser):
    """Reads a page strictly: every element that is opened is closed, in the right order."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.words: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open[-1:] != ["style"]:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> MadeUpRun:
    """Four workers, ten minutes, two restarts."""
    return MadeUpRun(tmp_path_factory.mktemp("made"), workers=4, fails_at=(0.3, 0.6))


@pytest.fixture(scope="module")
def text(made: MadeUpRun) -> str:
    return report_page.page(made.run)


def test_it_shows_the_end_the_attempts_the_tasks_and_what_they_used(text: str) -> None:
    shown = Page(text).text
    for words in (
        "succeeded after 10 min 00 s",
        "85 %: trained 8 min 27 s; steps lost or done again 1 min 18 s, started 7.0 s",
        "lost 1 min 18 s of training, 20 steps",
        "multi_worker_mirrored",
        "worker-1 failed (exit code 1)",
        "computes most",
        "On host local, some process waited for a core in 30 % of the time.",
        "waits for a core",
        "CPU limit reached",
        "GPU 0 memory",
        "734 MB",
        "Who read what",
        "cluster formed",
        "step 127",
    ):
        assert words in shown


def test_a_success_with_a_loss_that_is_nan_is_not_green(made: MadeUpRun, text: str, tmp_path: Path) -> None:
    doubtful = MadeUpRun(tmp_path, workers=2, seconds=60.0, nan_from=8)
    page = report_page.page(doubtful.run)
    top = page[page.index('<section class="verdict') : page.index("</section>")]
    assert top.startswith('<section class="verdict odd"')
    assert "<p>worker-0..1: norm and loss are nan by step 1. fix: lower the learning rate, " in top
    charts_of = {one.title: one for one in report_page.contents(doubtful.run, gather(doubtful.run))["reported"]}
    assert (charts_of["loss"].last, charts_of["loss"].summary) == ("nan", "loss: lowest 0.1429, highest 1, at the end nan")
    assert charts_of["norm"].summary == "norm: never a finite number, at the end nan"
    odd = [[line.is_odd for line in charts_of[name].lines] for name in ("loss", "norm", "step")]
    assert odd == [[False, False, True], [True], [False, False]]
    assert page.count('<path class="odd" d="M') == 2
    assert 'class="verdict good"' in text
    assert 'class="odd"' not in text


def test_hostile_words_are_text_and_secrets_are_left_out(text: str) -> None:
    page = Page(text)
    assert not {"script", "img", "iframe", "object", "link", "a", "form"} & {*page.tags}
    assert "</script><script>alert(1)</script> <img src=x onerror=alert(2)> &" in page.text
    assert "{{ 7*7 }}" in page.text
    assert not [name for name, _ in page.attributes if name.startswith("on") or name in ("src", "href", "srcset", "action")]
    assert SECRET not in text
    assert "\x1b" not in text


def test_it_names_no_other_file_and_allows_no_script(text: str) -> None:
    assert "http:" not in text
    assert "https:" not in text
    assert "url(" not in text
    assert "@import" not in text
    assert ("content", "default-src 'none'; style-src 'unsafe-inline'") in Page(text).attributes


def test_every_picture_says_in_words_what_it_shows(text: str) -> None:
    pictures = re.findall(r"<svg ([^>]*)>", text)
    assert len(pictures) > 20
    assert all('role="img"' in one and re.search(r'aria-label="[^"]{10,}"', one) for one in pictures)


def test_the_attempts_take_the_time_of_the_run_and_each_lost_ten_steps(made: MadeUpRun) -> None:
    story = gather(made.run)
    costs = run_story.losses(story.band, story.reports)
    assert [one.attempt for one in costs] == [1, 2, 3]
    assert sum(sum(one.seconds.values()) for one in costs) == pytest.approx(600.0, abs=1.0)
    assert [one.steps for one in costs] == [10.0, 10.0, None]
    assert costs[0].seconds[run_story.LOST] == pytest.approx(40.0, abs=8.0)
    assert run_story.LOST not in costs[2].seconds


def test_a_checkpoint_tells_what_was_lost_where_no_steps_are_reported() -> None:
    from orchestrator.model.state.cluster import PastAttempt

    band = (Stretch(0.0, 10.0, run_story.STARTS), Stretch(10.0, 50.0, run_story.TRAINS), Stretch(50.0, 60.0, run_story.TRAINS, 2))
    found = run_story.with_losses(band, (PastAttempt(1, 0.0, 50.0, saved_at=30.0),), {})
    assert [(one.begun, one.ended, one.kind) for one in found] == [
        (0.0, 10.0, "starts"),
        (10.0, 30.0, "trains"),
        (30.0, 50.0, "lost"),
        (50.0, 60.0, "trains"),
    ]
    reports = {"worker-0": [Reported(40.0, 1, {"step": 4.0}), Reported(55.0, 2, {"step": 5.0})]}
    assert run_story.with_losses(band, (), reports)[1].kind == "trains"


def test_a_run_whose_controller_died_says_where_the_record_ends(tmp_path: Path) -> None:
    made = MadeUpRun(tmp_path, workers=2, seconds=60.0)
    events = made.run.path / "events.jsonl"
    events.write_bytes(b"".join(line for line in events.read_bytes().splitlines(keepends=True) if not line.startswith(ENDS)))
    (made.run.path / "result.json").unlink()
    shown = Page(report_page.page(made.run)).text
    assert "was cut off after" in shown
    assert "The controller died before it could say how the run ended" in shown
    assert gather(made.run).ended >= BEGAN + 50


@pytest.mark.slow
def test_a_day_of_64_tasks_takes_less_than_two_megabytes(tmp_path: Path) -> None:
    made = MadeUpRun(tmp_path, workers=64, seconds=86_400.0, report_s=1200.0, sample_s=240.0, fails_at=(0.5,))
    text = report_page.page(made.run)
    assert len(text.encode()) < 2_000_000
    assert Page(text).text.count("worker-63") >= 4
    if BROWSER is not None:  # on paper, six pages of A4 at most
        (tmp_path / "page.html").write_text(text)
        options = ["--no-sandbox", "--disable-gpu", "--headless", f"--user-data-dir={tmp_path / 'profile'}", "--no-pdf-header-footer"]
        command = [BROWSER, *options, f"--print-to-pdf={tmp_path / 'page.pdf'}", f"file://{tmp_path / 'page.html'}"]
        subprocess.run(command, check=True, capture_output=True, env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}, timeout=200)
        assert 1 < len(re.findall(rb"/Type */Page\b[^s]", (tmp_path / "page.pdf").read_bytes())) <= 6


def test_a_line_keeps_its_spikes_however_few_its_points() -> None:
    points = [(float(at), 1.0) for at in range(10_000)]
    points[5_001] = (5_001.0, 99.0)
    points[7_007] = (7_007.0, -99.0)
    thinned = charts.thin(points, 100)
    assert len(thinned) <= 102
    assert {(5_001.0, 99.0), (7_007.0, -99.0)} <= {*thinned}
    assert thinned == sorted(thinned)


def test_the_archive_has_the_page_and_the_logs_without_secrets(made: MadeUpRun, text: str, tmp_path: Path) -> None:
    path = tmp_path / "run.zip"
    programs = [made.run.path / name for name in ("submission.json", "call.seal", "attempt-1/worker-0/value.pickle")]
    for left in programs:  # what would start a program where somebody looks at the archive
        left.write_text("x")
    run_bundle.write_bundle(made.run, path, text)
    for left in programs:
        left.unlink()
    assert path.stat().st_mode & 0o777 == 0o600
    with zipfile.ZipFile(path) as archive:
        names = {name.partition("/")[2] for name in archive.namelist()}
        assert {"report.html", "events.jsonl", "plan.json", "attempt-1/worker-0/stderr.log", "samples/0.jsonl"} <= names
        assert not {"lock", "control", "reserve", *(str(left.relative_to(made.run.path)) for left in programs)} & names
        assert all(SECRET.encode() not in archive.read(name) for name in archive.namelist())
        # Each file that was JSON is JSON.
        for name in archive.namelist():
            if name.endswith(".json"):
                json.loads(archive.read(name))
            if name.endswith(".jsonl"):
                [json.loads(line) for line in archive.read(name).splitlines()]
    before = path.stat().st_ino
    assert run_bundle.write_bundle(made.run, path, text) >= 1, "an older archive is replaced"
    assert path.stat().st_ino != before
    assert [one.name for one in tmp_path.glob("*.zip*")] == ["run.zip"]


def test_without_jinja_it_says_what_to_install(made: MadeUpRun, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(UsageError, match=r"pip install jinja2"):
        report_page.page(made.run)


@pytest.mark.skipif(BROWSER is None, reason="NOT TESTED: the page in a browser: no Chromium is installed (chromium-headless-shell)")
@pytest.mark.parametrize("width", [390, 1600])
@pytest.mark.parametrize("dark", [False, True])
def test_a_browser_draws_it_without_an_error(text: str, tmp_path: Path, width: int, dark: bool) -> None:
    (tmp_path / "page.html").write_text(text)
    assert BROWSER is not None
    options = ["--no-sandbox", "--disable-gpu", "--headless", f"--user-data-dir={tmp_path / 'profile'}", "--enable-logging=stderr"]
    options += ["--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-quic"]
    options += ["--blink-settings=preferredColorScheme=0"] if dark else []
    picture = tmp_path / "picture.png"
    done = subprocess.run(
        [BROWSER, *options, f"--window-size={width},2000", f"--screenshot={picture}", f"file://{tmp_path / 'page.html'}"],
        capture_output=True,
        text=True,
        env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    assert "CONSOLE" not in done.stderr
    assert picture.stat().st_size > 50_000
