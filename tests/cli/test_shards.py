"""`orch shards` as a user meets it: the picture, the numbers, the advice, what it refuses. tests/real/test_shards.py asks TensorFlow."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests import tfrecords
from tests.conftest import Orch

SIZE = 20
"""Bytes of a record whose data are four."""


@pytest.fixture(autouse=True)
def data(tmp_path: Path) -> Path:
    """Six files of uneven length: 40, 4, 4, 40, 4, 4 elements."""
    place = tmp_path / "data"
    place.mkdir()
    for number in range(6):
        tfrecords.write(place / f"part-{number}.tfrecord", [b"data"] * (4 if number % 3 else 40))
    return place


def shards(orch: Orch, *words: str, check: int = 0, env: Mapping[str, str] | None = None) -> Any:
    return json.loads(orch.in_process("shards", *words, "--json", check=check, env=env).out)


def topics(told: Any) -> list[str]:
    return [one["topic"] for one in told["advice"]]


def test_what_each_worker_reads_and_how_far_it_gets(orch: Orch) -> None:
    told = shards(orch, "data/*", "-n", "3", "-b", "12")
    assert (told["files"], told["bytes"], told["elements"], told["applied"]) == (6, 96 * SIZE, 96, "file")
    assert [(one["task"], one["files"], one["bytes"], one["elements"], one["steps"]) for one in told["shares"]] == [
        ("worker-0", 2, 80 * SIZE, 80, 20),
        ("worker-1", 2, 8 * SIZE, 8, 2),
        ("worker-2", 2, 8 * SIZE, 8, 2),
    ]
    assert (told["steps"], told["full"]) == (20, 2)
    (uneven,) = told["advice"]
    assert (uneven["severity"], uneven["topic"]) == ("warning", "uneven")
    assert "worker-1 gets 8 elements, worker-0 80; of 20 steps it has nothing to do in 18" in uneven["what"]
    assert uneven["remedy"] == "set auto_shard: data, or write files of even size"


def test_the_picture(orch: Orch) -> None:
    out = orch.in_process("shards", "data/*", "-n", "3", "-b", "12", env={"COLUMNS": "72"}, check=0).out
    assert max(map(len, out.splitlines())) <= 72
    assert "worker-0      2  1.6 kB        80     20  " + "#" * 28 in out
    assert "worker-1      2   160 B         8      2  ###" + "." * 25 in out
    assert "The data ends first for worker-1..2, after step 2." in " ".join(out.split())
    assert "\x1b" not in out


def test_every_worker_reads_every_byte_under_data(orch: Orch, tmp_path: Path) -> None:
    told = shards(orch, "data/*", "-n", "3", "-b", "12", "--policy", "data")
    assert {one["bytes"] for one in told["shares"]} == {96 * SIZE}
    assert sum(one["elements"] for one in told["shares"]) == 96
    (reads,) = told["advice"]
    assert "DATA reads every byte 3 times, once on each worker: 5.8 kB instead of 1.9 kB" in reads["what"]
    assert (reads["what"].endswith(", which costs little at this size"), reads["remedy"]) == (True, "")
    for number in range(3):
        (tmp_path / f"large-{number}").touch()
        os.truncate(tmp_path / f"large-{number}", 50_000_000)
    words = ("large-*", "-n", "3", "--policy", "data", "--elements-per-file", "9", "--format")
    remedies = [shards(orch, *words, kind)["advice"][0]["remedy"] for kind in ("text", "other")]
    assert remedies[0] == "set auto_shard: file"
    assert remedies[1].startswith("TensorFlow cannot shard this by file: write TFRecords")


def test_fewer_files_than_workers_is_an_error_that_names_both_remedies(orch: Orch) -> None:
    told = shards(orch, "data/part-[01]*", "-n", "4", "-b", "8", check=1)
    assert told["steps"] is None
    (few,) = [one for one in told["advice"] if one["severity"] == "error"]
    assert few["what"] == (
        "2 files for 4 workers: TensorFlow fails in worker-0..1 ('Could not apply FILE based sharding'), "
        "and gives worker-2..3 only empty batches"
    )
    assert few["remedy"] == "set auto_shard: data, or write 4 files or more"
    assert shards(orch, "data/part-[01]*", "-n", "4", "-b", "8", "-p", "data")["steps"] == 6


def test_files_without_a_reader(orch: Orch, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("1,2\n" * 10)
    told = shards(orch, "a.csv", "-n", "2", "-b", "4")
    assert (told["applied"], told["elements"], topics(told)) == ("data", 10, ["reads all", "small end", "csv"])
    assert topics(shards(orch, "a.csv", "-n", "2", "-b", "4", "--policy", "file", check=1))[0] == "no reader"
    assert topics(shards(orch, "a.csv", "-n", "2", "-b", "4", "--format", "text", check=1))[0] == "few files"


@pytest.mark.parametrize(
    ("words", "topic", "what"),
    [
        (("-n", "1", "-r", "5", "-b", "4"), "small batch", "a global batch of 4 leaves 1 of 5 replicas empty in every step; the mean over"),
        (("-n", "2", "-r", "2", "-b", "6", "-p", "data"), "small batch", "leaves 1 of 4 replicas empty in every step"),
        (("-n", "2", "-b", "7", "-p", "data"), "odd batch", "they get 4 to 3"),
        (("-n", "2", "-b", "10", "-p", "off"), "all see all", "one epoch goes 2 times over the data"),
        (("-n", "2", "-b", "10", "-p", "hint"), "hint", "tf.data.experimental.SHARD_HINT"),
        (("-n", "2", "-b", "7", "--drop-remainder"), "dropped", "leaves out 12 elements, 12.5%: each worker batches its own files by 7"),
        (("-n", "3", "-b", "24", "--drop-remainder"), "dropped", "own rest; worker-1..2 have less than one batch, and so nothing"),
        (("-n", "1", "-b", "10"), "small end", "1 step at the end with less than the global batch of 10"),
    ],
)
def test_advice(orch: Orch, words: tuple[str, ...], topic: str, what: str) -> None:
    found = {one["topic"]: one["what"] for one in shards(orch, "data/*", *words)["advice"]}
    assert what in found[topic]
    assert "hint" not in topics(shards(orch, "data/*", "-n", "1", "-p", "hint"))


def test_a_worker_without_elements_has_nothing_to_do(orch: Orch, data: Path) -> None:
    for path in (data / "part-1.tfrecord", data / "part-4.tfrecord"):
        path.write_bytes(b"")
    told = shards(orch, "data/*", "-n", "3", "-b", "6")
    assert topics(told) == ["uneven", "empty files"]
    assert "worker-1 gets 0 elements, worker-0 80; of 40 steps it has nothing to do in 40" in told["advice"][0]["what"]


def test_damaged_and_unreadable_files_are_all_named_with_the_byte(orch: Orch, data: Path) -> None:
    whole = (data / "part-0.tfrecord").read_bytes()
    (data / "part-1.tfrecord").write_bytes(whole[:55])
    (data / "part-2.tfrecord").write_bytes(whole[:40] + b"\1" + whole[41:])
    (data / "sub").mkdir()
    os.mkfifo(data / "pipe")
    done = orch.in_process("shards", "data/*", "data/sub", "-n", "2", check=2)
    assert "error: data/part-1.tfrecord: at byte 55: the file ends inside record 2, which begins at byte 40" in done.err
    assert "data/part-2.tfrecord: at byte 40: the header of record 2 is damaged" in done.err
    assert "data/sub: is a directory; name its files: 'data/sub/*'" in done.err
    assert "data/pipe: is no regular file" in done.err
    assert done.out == ""


def test_a_pattern_names_what_it_names_to_worker_files(orch: Orch, data: Path) -> None:
    (data / "deep/er").mkdir(parents=True)
    tfrecords.write(data / "deep/er/part.tfrecord", [b"data"])
    assert shards(orch, "data/**/*.tfrecord")["files"] == 7
    assert shards(orch, "data/**", "data/part-0.tfrecord", "data/*")["files"] == 7


def test_patterns_that_nothing_fits_and_no_files_at_all(orch: Orch, tmp_path: Path) -> None:
    assert "no file fits 'dta/*' (looked in dta)" in orch.in_process("shards", "dta/*", check=2).err
    assert "no file fits 'x.tfrecord'" in orch.in_process("shards", "x.tfrecord", check=2).err
    assert "there are no files to look at" in orch.in_process("shards", check=2).err
    (tmp_path / "odd[1].txt").write_text("1\n")
    assert shards(orch, "odd[1].txt")["elements"] == 1


def test_files_of_an_unknown_kind_are_shared_out_by_size(orch: Orch, tmp_path: Path) -> None:
    for number in range(2):
        (tmp_path / f"{number}.bin").write_bytes(bytes(1000))
    told = shards(orch, "*.bin", "-n", "2", "-b", "4")
    assert (told["elements"], told["steps"], told["bytes"], topics(told)) == (None, None, 2000, ["reads all", "not counted"])
    assert told["shares"][0]["elements"] is None
    assert shards(orch, "*.bin", "-n", "2", "-b", "4", "--elements-per-file", "10")["steps"] == 5
    tfrecords.write(tmp_path / "train-00000-of-00002", [b"x"] * 3)
    assert shards(orch, "train-*")["kinds"] == ["tfrecord"]


def test_each_file_and_each_step_is_listed(orch: Orch) -> None:
    out = orch.in_process("shards", "data/*", "-n", "2", "-r", "2", "-b", "20", "--list", "--batches", check=0).out
    assert "worker-1  data/part-3.tfrecord  800 B  40 elements\n" in out
    assert "step 1: worker-0 5+5, worker-1 5+5\n" in out
    assert "step 5: worker-0 5+3, worker-1 5+3\n" in out


def test_files_of_a_store_are_refused(orch: Orch) -> None:
    assert "gs://a/*: only files of this machine can be looked at" in orch.in_process("shards", "gs://a/*", check=2).err


SPEC = """
script: train.py
tasks: {{chief: 1, worker: 2}}
input: {{files: ["data/*"], auto_shard: data, global_batch_size: 12, drop_remainder: true}}
{more}
"""


def test_what_a_spec_says_and_what_a_flag_says_over_it(orch: Orch, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "orch.yaml").write_text(SPEC.format(more=""))
    told = shards(orch)
    assert [one["task"] for one in told["shares"]] == ["chief-0", "worker-0", "worker-1"]
    assert (told["policy"], told["batch"], told["drop_remainder"], told["files"]) == ("data", 12, True, 6)
    told = shards(orch, "-f", "orch.yaml", "-n", "2", "-b", "8", "--policy", "file")
    assert ([one["task"] for one in told["shares"]], told["policy"], told["batch"]) == (["worker-0", "worker-1"], "file", 8)
    (tmp_path / "gpus.yaml").write_text(SPEC.format(more="defaults: {devices: {gpus: 4}}"))
    assert shards(orch, "-f", "gpus.yaml")["replicas"] == 4


def test_a_strategy_that_shards_nothing_says_so(orch: Orch, tmp_path: Path) -> None:
    (tmp_path / "ps.yaml").write_text(SPEC.format(more="").replace("tasks: {", "tasks: {ps: 1, "))
    told = shards(orch, "-f", "ps.yaml")
    assert topics(told) == ["not sharded"]
    assert "ParameterServerStrategy has no auto-sharding" in told["advice"][0]["what"]
    assert {one["bytes"] for one in told["shares"]} == {96 * SIZE}
    (tmp_path / "tpu.yaml").write_text("script: a.py\ntpu: {topology: v3-8}\ninput: {files: ['data/*']}\n")
    told = shards(orch, "-f", "tpu.yaml", "-b", "16")
    assert (told["workers"], told["replicas"]) == (1, 8)
    (tmp_path / "one.yaml").write_text("script: a.py\nstrategy: mirrored\ndefaults: {devices: {cpus: 3}}\ninput: {files: ['data/*']}\n")
    assert shards(orch, "-f", "one.yaml", "-b", "6")["replicas"] == 3


# --- before `orch up` ----------------------------------------------------------------------------


def up(orch: Orch, tmp_path: Path, section: str, *words: str, check: int = 0) -> Any:
    (tmp_path / "train.py").write_text("print('trained')\n")
    (tmp_path / "orch.yaml").write_text(f"script: train.py\nkeras: off\ninput: {section}\n")
    return orch("up", *words, check=check)


def test_warnings_are_said_in_a_line_each_before_the_start(orch: Orch, tmp_path: Path) -> None:
    done = up(orch, tmp_path, "{files: ['data/*'], global_batch_size: 12}", "-n", "3")
    (line,) = [line for line in done.err.splitlines() if "input:" in line]
    assert line.startswith(
        "orch: warning: input: the files are uneven: worker-1 gets 8 elements, worker-0 80; of 20 steps it has nothing to do"
    )
    assert line.endswith("in 18, unless the script shares them out itself. fix: set auto_shard: data, or write files of even size")
    assert done.out.count("trained") == 3


def test_few_files_are_a_warning_since_the_script_may_share_them_out_itself(orch: Orch, tmp_path: Path) -> None:
    few = "{files: ['data/part-[01]*'], auto_shard: file}"
    done = up(orch, tmp_path, few, "-n", "3")
    assert "orch: warning: input: 2 files for 3 workers" in done.err
    assert "only empty batches, unless the script shares them out itself. fix: set auto_shard: data, or write 3 files or more" in done.err
    assert done.out.count("trained") == 3
    assert "input" not in up(orch, tmp_path, few, "-n", "2").err


def test_files_without_an_element_are_refused(orch: Orch, tmp_path: Path) -> None:
    (tmp_path / "none.tfrecord").write_bytes(b"")
    done = up(orch, tmp_path, "{files: [none.tfrecord]}", check=2)
    assert "error: input: the files hold no element" in done.err
    assert "trained" not in done.out
    assert not (tmp_path / ".orch").exists()


def test_files_that_are_missing_or_damaged_are_refused_unless_they_may_be_made_yet(orch: Orch, tmp_path: Path, data: Path) -> None:
    done = up(orch, tmp_path, "{files: ['dta/*']}", check=2)
    assert f"error: input.files: no file fits 'dta/*' (looked in {tmp_path}/dta)" in done.err
    assert up(orch, tmp_path, "{files: ['dta/*']}", "--prepare", "mkdir dta").out.count("trained") == 1
    (data / "part-3.tfrecord").write_bytes(b"nonsense of some length")
    done = up(orch, tmp_path, "{files: ['data/*']}", check=2)
    assert "part-3.tfrecord: at byte 0: this is no TFRecord file" in done.err
