"""The combinations that are checked, in the order in which they teach most."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cell:
    """One environment. Empty versions are the newest that fit."""

    python: str
    tensorflow: str
    keras: str = ""
    lowest: bool = False
    """Whether click, psutil and PyYAML are the lowest that pyproject.toml allows."""
    ordinary: bool = False
    """Whether everything runs as an ordinary user, though this process is root's."""
    tests_of_keras: bool = False
    """Whether it also has what Keras's own tests import."""

    @property
    def name(self) -> str:
        """A file name: ``3.10-tf2.16-lowest``."""
        keras = self.keras and f"keras{self.keras}"
        tensorflow = self.tensorflow if self.is_next else f"tf{self.tensorflow}"
        parts = (self.python, tensorflow, keras, self.lowest and "lowest", self.ordinary and "user", self.tests_of_keras and "tests")
        return "-".join(part for part in parts if part)

    @property
    def is_next(self) -> bool:
        """Whether this is the newest TensorFlow and the newest Keras that the index has, also releases that are not final."""
        return self.tensorflow == "next"


LOWEST = Cell("3.10", "2.16", lowest=True)
NEWEST = Cell("3.13", "2.21")
NEXT = Cell("3.13", "next")
CORNERS = (LOWEST, NEWEST, NEXT)
CELLS = (
    LOWEST,
    NEWEST,
    NEXT,
    Cell("3.11", "2.18"),
    Cell("3.10", "2.21"),
    Cell("3.11", "2.17"),
    Cell("3.13", "2.20"),
    Cell("3.11", "2.21", ordinary=True),
    Cell("3.12", "2.21"),
    Cell("3.11", "2.16"),
    Cell("3.11", "2.19"),
    Cell("3.11", "2.20"),
)
LOWEST_TENSORFLOW = {"3.13": "2.20"}
"""The lowest release that has a wheel for a Python, where this is not 2.16."""
