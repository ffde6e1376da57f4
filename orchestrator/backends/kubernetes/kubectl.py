"""Runs kubectl: its own configuration, contexts and login plugins count. Errors become messages with a remedy.

The objects of a run have an owner, a Service: anyone who deletes the Service deletes them all.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import json
import os
import shlex
import subprocess
import time
from collections.abc import AsyncGenerator, Sequence
from typing import Any, Protocol

from ...errors import OrchError, UnansweredError, UsageError
from .kubectl_errors import ABOUT, PassingError, no_answer, to_error

ANSWER_S = 60.0
"""How long kubectl may take for one answer."""
READ_BYTES = 1 << 16
POD_S = 0.5
"""How much longer `kubectl create` may take for each object of many: kubectl sends them one by one."""
DELETE_S, DELETE_PAUSES_S = 20.0, (1.0, 3.0)
"""How long a deletion may take for an answer, and the pauses before it is tried again: no one else deletes the objects of this run."""


class Where(Protocol):
    """A namespace, and how kubectl reaches it."""

    @property
    def kubectl(self) -> tuple[str, ...]: ...
    @property
    def kubeconfig(self) -> str: ...
    @property
    def context(self) -> str: ...
    @property
    def namespace(self) -> str: ...


def kubectl_argv(place: Where, *words: str) -> tuple[str, ...]:
    """A command of kubectl for a namespace. A kubeconfig with a colon is the value of KUBECONFIG, a list, for which there is no option."""
    is_list = os.pathsep in place.kubeconfig
    where = ("context", "namespace") if is_list else ("kubeconfig", "context", "namespace")
    options = (f"--{name}={value}" for name in where if (value := getattr(place, name)))
    env = ("env", f"KUBECONFIG={place.kubeconfig}") if is_list else ()
    return (*env, *(place.kubectl or ("kubectl",)), *options, *words)


def pin(place: Where, doing: str) -> dict[str, str]:
    """The kubeconfig, the context and the namespace that kubectl uses now, by the names of the settings. Blocks. Raises `OrchError`.

    Without a context, as in a pod with a service account, kubectl has rules of its own, and only what is set is returned.
    """
    found = {name: value for name in ("kubeconfig", "context", "namespace") if (value := getattr(place, name))}
    files = [os.path.abspath(file) for file in os.environ.get("KUBECONFIG", "").split(os.pathsep) if file]
    if files and not place.kubeconfig:
        # Not as an option, even for one file: a program around kubectl may set that option itself.
        found["kubeconfig"] = os.pathsep.join([*files, ""])
    done = call(kubectl_argv(place, "config", "view", "--minify", "-o", "json"), doing)
    with contextlib.suppress(ValueError, LookupError, TypeError):
        view = json.loads("" if done.returncode else done.stdout)
        context, more = view["current-context"], view["contexts"][0]["context"]
        if context:
            found = {"context": context, "namespace": more.get("namespace") or "default", **found}
    return found


def refuse_without_exec(place: Where, doing: str) -> None:
    """Raise `OrchError` if the user lacks the right without which nothing that is made could be used. Blocks."""
    if call(kubectl_argv(place, "auth", "can-i", "create", "pods", "--subresource=exec"), doing).stdout.startswith("no"):
        raise OrchError(f"{doing}: you may not create pods/exec there, by which orch reaches its pods", "ask for a Role that has it", ABOUT)


def create_owner(place: Where, text: str, doing: str) -> str:
    """Make the object that owns the others. Returns its uid, which they name. Blocks. Raises `OrchError`."""
    return ask(kubectl_argv(place, "create", "-f", "-", "-o", "jsonpath={.metadata.uid}"), doing, text).strip()


def create(place: Where, text: str, doing: str, count: int = 0) -> None:
    """Make objects. `count`: how many, if there are many. Blocks. Raises `OrchError`."""
    ask(kubectl_argv(place, "create", "-f", "-"), doing, text, ANSWER_S + POD_S * count)


def delete_owner(place: Where, owner: str) -> bool:
    """Delete the Service, and so all that it owns. Returns whether it was there. Blocks. Raises `OrchError`."""
    argv = kubectl_argv(place, "delete", "service", owner, "--ignore-not-found", "--wait=false")
    for pause_s in (*DELETE_PAUSES_S, None):
        try:
            return bool(ask(argv, "the pods were not deleted", limit_s=DELETE_S).strip())
        except UsageError:
            raise
        except OrchError as error:
            if pause_s is None or not isinstance(error, (PassingError, UnansweredError)):
                raise OrchError(error.line, by_hand(place, owner)) from None
            time.sleep(pause_s)
    raise AssertionError("the last try returns or raises")


def by_hand(place: Where, *chosen: str) -> str:
    """Return what is left to the user when orch cannot delete the pods."""
    command = shlex.join(kubectl_argv(place, "delete", "service", *chosen))
    return f"pods that are left end by themselves; to delete them, with the Service and the NetworkPolicy: {command}"


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
        what = f"{doing}: there is no program {argv[0]} on PATH here"
        raise UsageError(what, "install kubectl, or name it with backend.kubectl", ABOUT) from None
    except OSError as error:
        raise OrchError(f"{doing}: {argv[0]} cannot be run: {error.strerror or error}") from None


async def watch(argv: Sequence[str], doing: str) -> AsyncGenerator[Any, None]:
    """The JSON documents that a command prints until it ends. Raises `OrchError` if it fails. It ends with the iterator."""
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
