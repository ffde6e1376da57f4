"""Defines what the record keeps of the engine that runs a run's controller, and the seals of this user's own directories.

    submission.json     what was submitted, sealed; written once, when the engine has accepted the run
    engine.json         the last word of the engine about the job
    requests            lines for the controller (control/requests.py), which reads the file again each second: a named pipe reaches
                        no other machine
    requests.offset     the offset in `requests` up to which controllers have acted
    call.seal           says of a run of a function that this user has made the directory here

`run` is the directory of the run.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import stat
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from worker.values.codec import from_json, to_json

from ..errors import OrchError
from ..model.policy.submission import Heard, Submission
from .run_files import open_own, read_file, write_all, write_whole
from .run_lock import try_lock
from .text.lines import clean

T = TypeVar("T")

KEY_BYTES = 32
MOST_WORDS = 4000


def read_submission(run: Path) -> Submission | None:
    """Return what was submitted; None for a run whose controller is no job of an engine."""
    found = _read(run, "submission.json", Submission)
    return found and replace(found, words=_shown(found.words), place=_shown(found.place))


def keep_submission(run: Path, submitted: Submission) -> None:
    """Raises OSError, and `OrchError` as `seal_key` does."""
    sealed = replace(submitted, seal=_seal(run, _unsealed(submitted), seal_key()))
    write_whole(run / "submission.json", json.dumps(to_json(sealed)).encode())


def is_copy(run: Path) -> bool:
    """True if the job of a run belongs to another directory, of which this one is a copy, or its files are not as orch has left them.

    They name the programs that reach the job, so a directory that somebody has sent could start any program.
    """
    with contextlib.suppress(OSError, OrchError):
        submitted = read_submission(run)
        return submitted is None or not secrets.compare_digest(submitted.seal, _seal(run, _unsealed(submitted), _read_key(_key_path())))
    return True


def keep_call_seal(run: Path) -> None:
    """Say of a run of a function that this user has made it here. Raises OSError, and `OrchError` as `seal_key` does."""
    write_whole(run / "call.seal", _seal(run, "call", seal_key()).encode())


def has_call_seal(run: Path) -> bool:
    """True if this user has made this directory for a function: the values in it are pickles, which may contain any code."""
    with contextlib.suppress(OSError, OrchError):
        return secrets.compare_digest(read_file(run / "call.seal"), _seal(run, "call", _read_key(_key_path())).encode())
    return False


def _unsealed(submitted: Submission) -> object:
    return to_json(replace(submitted, seal=""))


def _seal(run: Path, job: object, key: bytes) -> str:
    """Return what only this user can make, and only for this directory with this spec and this job."""
    import hmac  # a slow import, which most runs do not need

    what = [run.stat().st_ino, job, read_file(run / "spec.yaml").decode("utf-8", "surrogateescape")]
    return hmac.new(key, json.dumps(what, sort_keys=True).encode(), "sha256").hexdigest()


def seal_key() -> bytes:
    """A key of this user, made if there is none, outside of all runs: no directory brings one along. Raises `OrchError`."""
    path = _key_path()
    try:
        with contextlib.suppress(FileNotFoundError):
            return _read_key(path)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        aside = path.with_name(f".seal.{os.getpid()}")
        write_whole(aside, os.urandom(KEY_BYTES))
        with contextlib.suppress(FileExistsError):  # another process was first: its key counts
            os.link(aside, path)
        aside.unlink()
        return _read_key(path)
    except OSError as error:
        raise OrchError(f"{path} cannot be kept: {error.strerror or error}; XDG_STATE_HOME names another directory") from None


def _read_key(path: Path) -> bytes:
    """Raises OSError, and `OrchError` if the key may be somebody else's."""
    with open(path, "rb") as file:
        facts = os.fstat(file.fileno())
        key = file.read(KEY_BYTES + 1) if stat.S_ISREG(facts.st_mode) else b""
    if facts.st_uid != os.geteuid() or facts.st_mode & 0o077 or len(key) != KEY_BYTES:
        raise OrchError(f"{path} is no key that only this user can read and write: remove it, and submit runs again")
    return key


def _key_path() -> Path:
    """Outside of the working directory, which may be somebody else's. Raises `OrchError`."""
    state = os.environ.get("XDG_STATE_HOME", "")
    path = state if os.path.isabs(state) else os.path.expanduser("~/.local/state")
    if not os.path.isabs(path):
        raise OrchError("this user has no home directory for orch's key: set HOME or XDG_STATE_HOME")
    return Path(path, "orch", "seal")


def read_heard(run: Path) -> Heard:
    """The last word of the engine: a run of which the engine was not asked yet waits."""
    found = _read(run, "engine.json", Heard) or Heard()
    word = replace(found.word, words=_shown(found.word.words), cause=_shown(found.word.cause))
    return replace(found, word=word, trouble=_shown(found.trouble))


def keep_heard(run: Path, heard: Heard) -> None:
    """If this cannot be written, such as by another user or on a full disk, anyone who comes next asks again."""
    with contextlib.suppress(OSError):
        write_whole(run / "engine.json", json.dumps(to_json(heard)).encode())


def append_request(run: Path, line: bytes) -> None:
    """Give a line to a controller that sees the same directory. Raises `OrchError`."""
    try:
        fd = open_own(run / "requests", os.O_WRONLY | os.O_APPEND)
        with os.fdopen(fd, "wb", buffering=0) as file:
            write_all(file.fileno(), line)
    except OSError as error:
        raise OrchError(f"{run.name} cannot be asked: {run / 'requests'}: {error.strerror or error}") from None


def read_offset(run: Path) -> int:
    """The offset in `requests` up to which the controllers of a run have acted."""
    with contextlib.suppress(OSError, ValueError, OrchError):
        return max(0, int(read_file(run / "requests.offset")))
    return 0


def keep_offset(run: Path, offset: int) -> None:
    """If this cannot be written, as on a full disk, a controller that resumes the run acts on some requests again."""
    with contextlib.suppress(OSError):
        write_whole(run / "requests.offset", str(offset).encode())


@contextlib.contextmanager
def exclusive(path: Path, patience_s: float) -> Iterator[bool]:
    """Hold a file, made if need be, alone; False: another has it too long. True where no file can be locked."""
    with contextlib.ExitStack() as held:
        is_alone = True
        with contextlib.suppress(OSError):
            fd = open_own(path, os.O_RDWR)
            held.callback(os.close, fd)
            deadline = time.monotonic() + patience_s
            while not (is_alone := try_lock(fd, fcntl.LOCK_EX)) and time.monotonic() < deadline:
                time.sleep(0.05)
        yield is_alone


def _shown(words: str) -> str:
    """Words for people, as much as an engine of orch writes: the directory may be one that somebody has sent."""
    return clean(words)[:MOST_WORDS]


def _read(run: Path, name: str, kind: type[T]) -> T | None:
    with contextlib.suppress(OSError, ValueError, RecursionError, OrchError):
        return from_json(kind, json.loads(read_file(run / name)))
    return None
