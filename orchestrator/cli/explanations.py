"""``orch help HEADING``: what docs/why.md says about the remedy that a report has named."""

from __future__ import annotations

import re
from pathlib import Path

# The page comes with an installed package; in the source tree it is among the other pages.
PLACES = (Path(__file__).with_name("why.md"), Path(__file__).parents[2] / "docs/why.md")


def anchor(heading: str) -> str:
    """The anchor of a heading, as GitHub and the site make it: ``No cluster was formed`` is ``no-cluster-was-formed``."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def explanations() -> dict[str, str]:
    """The text below each heading of the page, by the anchor of the heading. Empty if the page is not there."""
    page = next((place.read_text(encoding="utf-8") for place in PLACES if place.is_file()), "")
    _, *parts = re.split(r"^## ", page, flags=re.MULTILINE)
    return {anchor(part.partition("\n")[0]): _plain(part) for part in parts}


def _plain(part: str) -> str:
    """The part without the links, of which a terminal shows the names alone."""
    return re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", part).strip()
