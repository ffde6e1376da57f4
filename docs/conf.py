"""How Sphinx makes the site from the Markdown of this repository (`make docs`)."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from orchestrator import __version__  # noqa: E402

project = "orch"
copyright = "the authors of orch, Apache License 2.0"
release = version = __version__
html_title = f"orch {version}"
html_theme = "furo"
html_static_path = ["narrow.css"]
html_css_files = ["narrow.css"]
extensions = ["myst_parser", "sphinx_copybutton"]

# The source directory is the whole repository, so that a link which leads somewhere in the repository leads there on the site, too.
include_patterns = [
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "docs/*.md",
    "examples/README.md",
    "benchmarks/README.md",
]
exclude_patterns = [".*", "build", "dist", "orchestrator", "tests", "worker"]
root_doc = "docs/README"
myst_heading_anchors = 4
smartquotes = False  # "--workers" has two hyphens, also outside of code
html_copy_source = False
html_show_sourcelink = False
highlight_language = "text"
pygments_style, pygments_dark_style = "default", "monokai"
copybutton_prompt_text = "$ "  # a click copies the commands of a block, and not their output
copybutton_here_doc_delimiter = "EOF"
# The address of a machine that nobody is meant to reach, and pages that answer no program.
linkcheck_ignore = [r"http://localhost"]


def write_titles(app: Any, name: str, source: list[str]) -> None:
    """A link whose text is the name of a file gets the title of the page, or of the heading, in place of that name."""
    source[0] = re.sub(r"\[[\w/-]+\.md\]\(", "[](", source[0])
    if name == "docs/reference":  # its keys are headings, for the search; too many for the contents of the page
        source[0] = f"---\ntocdepth: 3\n---\n{source[0]}"


def add_navigation(app: Any, name: str, source: list[str]) -> None:
    """Puts the navigation of the site at the end of the index: its headings, and the pages to which the links below each heading lead."""
    if name != root_doc:
        return
    for section in re.split(r"^## ", source[0], flags=re.MULTILINE)[1:]:
        heading, _, text = section.partition("\n")
        pages = "\n".join(re.findall(r"^\| \[.*?\]\(([^)#\s]+)\.md\)", text, re.MULTILINE))
        source[0] += f"\n```{{toctree}}\n:hidden:\n:caption: {heading}\n\n{pages}\n```\n"


def add_front_page(app: Any, failure: Exception | None) -> None:
    """The site begins at the index, also where somebody opens its directory."""
    if failure is None and app.builder.format == "html":
        page = f'<!doctype html><title>orch</title><meta http-equiv="refresh" content="0; url={root_doc}.html">\n'
        (Path(app.outdir) / "index.html").write_text(page)


def setup(app: Any) -> None:
    app.connect("source-read", write_titles)
    app.connect("source-read", add_navigation)
    app.connect("build-finished", add_front_page)
