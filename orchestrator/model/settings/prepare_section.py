"""The keys of `prepare:`, the command that prepares a host before its tasks start."""

from __future__ import annotations

from typing import Any, Literal

from worker.settings.declare import setting
from worker.values.fast_dataclass import dataclass

from .kinds import ANY_TEXT, JsonSchema, Text
from .tree import Node, refusal

_SHELL = ("/bin/sh", "-c")


class CommandLine(Text):
    """A text for the shell, or a list of a program and its arguments. The value is always a list."""

    __slots__ = ()

    def read(self, node: Node) -> Any:
        if not isinstance(node.value, list):
            return (*_SHELL, Text.read(self, node))
        words = tuple(ANY_TEXT.read(item) for item in node.value)
        if not words or not words[0]:
            raise refusal(node.place, "must begin with a program", "write [./fetch.sh, data], or a text for the shell")
        return words

    def json_schema(self) -> JsonSchema:
        return {"type": ["string", "number", "boolean", "array"]}


@dataclass(frozen=True, slots=True)
class Prepare:
    """The command that prepares a host. `run`: the program and its arguments; empty: no command."""

    SHORTHAND = "run"

    run: tuple[str, ...] = setting(
        (),
        "A command that each host runs once before its tasks start, such as a download: a text for the shell; in orch.yaml also a list.",
        kind=CommandLine(),
        example="python download.py",
        words="none",
        flag="--prepare",
        metavar="CMD",
    )
    hosts: Literal["all", "first"] = setting("all", "Which hosts run the command: all, or first, for a directory that all hosts share.")
