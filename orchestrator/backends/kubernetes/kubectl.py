"""Runs kubectl: its own configuration, contexts and login plugins count. Errors become messages with a remedy."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import json
import subprocess
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from ...errors import OrchError, UsageError
from ...model.spec import KubernetesSettings
from .kubectl_errors import no_answer, to_error

ANSWER_S = 60.0
"""How long kubectl may take for one answer."""
READ_BYTES = 1 << 16


def kubectl_argv(settings: KubernetesSettings, *words: str) -> tuple[str, ...]:
    """A command of kubectl for the cluster and the namespace of the settings."""
    where = ("kubeconfig", "context", "namespace")
    options = (f"--{name}={value}" for name in where if (value := getattr(settings, name)))
    return (*(settings.kubectl or ("kubectl",)), *options, *words)


def ask(argv: Sequence[str], doing: str, given: str = "", limit_s: float = ANSWER_S) -> str:
    """The output of a command. Blocks. Raises `OrchError`, and `UsageError` for what will never be accepted. `doing`: what fails."""
    done = call(argv, doing, given, limit_s)
    if done.returncode:
        raise to_error(doing, done.stderr or done.stdout)
    return done.stdout


def call(argv: Sequence[str], doing: str, given: str = "", limit_s: float = ANSWER_S) -> subprocess.CompletedProcess[str]:
    """A command that has ended. Blocks. Raises `OrchError` if it could not be run, or did not end."""
    try:
        return subprocess.run(
            argv, input=given, capture_output=True, text=True, errors="replace", timeout=limit_s, start_new_session=True, check=False
        )
    except subprocess.TimeoutExpired:
        raise no_answer(doing, limit_s) from None
    except FileNotFoundError:
        raise UsageError(f"{doing}: there is no program {argv[0]} on PATH here; install kubectl, or name it with backend.kubectl") from None
    except OSError as error:
        raise OrchError(f"{doing}: {argv[0]} cannot be run: {error.strerror or error}") from None


async def watch(argv: Sequence[str], doing: str) -> AsyncGenerator[Any, None]:
    """The JSON documents that a command prints, as they come, until it ends, as each watch does after some time.

    Raises `OrchError` if it fails. The command ends with the iterator.
    """
    pipe = subprocess.PIPE
    try:
        process = await asyncio.create_subprocess_exec(*argv, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, start_new_session=True)
    except OSError as error:
        raise OrchError(f"{doing}: {argv[0]} cannot be run: {error.strerror or error}") from None
    assert process.stdout is not None
    assert process.stderr is not None
    said = asyncio.create_task(process.stderr.read())
    documents = Documents()
    try:
        while data := await process.stdout.read(READ_BYTES):
            for document in documents.feed(data):
                yield document
        if await process.wait():
            raise to_error(doing, (await said).decode(errors="replace"))
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        await said


class Documents:
    """Cuts a stream into its JSON documents, which may have blanks and lines between them and inside."""

    def __init__(self) -> None:
        self._text = ""
        self._bytes = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._decoder = json.JSONDecoder()

    def feed(self, data: bytes) -> list[Any]:
        """The documents that are complete now."""
        self._text += self._bytes.decode(data)
        found = []
        while text := self._text.lstrip():
            try:
                document, end = self._decoder.raw_decode(text)
            except ValueError:  # its end is still to come
                break
            found.append(document)
            self._text = text[end:]
        return found
