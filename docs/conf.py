"""How Sphinx makes a site of this folder: `make docs`. The pages stay Markdown that GitHub shows as well."""

from __future__ import annotations

import posixpath
import re
import tomllib
from pathlib import Path

from sphinx.application import Sphinx

ROOT = Path(__file__).parents[1]
SOURCE = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["urls"]["Source"]
VERSION = re.compile(r'^__version__ = "(.+)"', re.MULTILINE)
MAP = {
    "Tutorials": "start standalone",
    "How-to": "batch stream records read changes migrate clusters upgrade secure access services deploy jobs "
    "monitor alerts runbooks performance",
    "Reference": "options cli errors metrics compatibility versions",
    "Explanation": "concepts comparison faq glossary",
    "Internals": "internals/*",
}
"""The left-hand map. A page that is missing here, or that does not exist, fails the build."""
FILES = {
    "README": "README.md",
    "Contributing": "CONTRIBUTING.md",
    "Changelog": "CHANGELOG.md",
    "Vulnerabilities": "SECURITY.md",
}
"""Documents outside this folder, to which the map links."""

project = "kafka-eos"
(release,) = VERSION.findall((ROOT / "kafka_eos_sink" / "__init__.py").read_text("utf-8"))
extensions = ["myst_parser"]
myst_enable_extensions = ["alert"]  # > [!WARNING]
myst_heading_anchors = 4
myst_heading_slug_func = "github"
highlight_language = "none"
smartquotes = False  # which make a dash of --option
html_theme = "furo"
html_title = f"{project} {release}"
html_copy_source = False
html_show_copyright = False
html_static_path = ["_static"]
html_css_files = ["site.css"]

_NARROW = re.compile(r"<td>.*?</td>|<h3>[^<]+", re.DOTALL)
_NAME = re.compile(r'(?<=<span class="pre">)[^<]+|(?<=<h3>).+')
_BREAK = re.compile(r"(?<=[a-z])\.(?=[a-z])|(?<=\w)_(?=[A-Za-z])")
_FENCED = re.compile(r"(^ *```.*?^ *```$)", re.MULTILINE | re.DOTALL)
_OUTSIDE = re.compile(r"\]\(((?:\.\./)+[^)\s]+)\)")
_PICTURE = re.compile(r'<picture>\s*<source[^>]*? srcset="([^"]+)"[^>]*>\s*<img([^>]*)>\s*</picture>')


def _for_the_site(app: Sphinx, page: str, text: list[str]) -> None:
    """Rewrite what only GitHub understands: links to files outside this folder, pictures in two colour schemes."""
    parts = _FENCED.split(text[0])
    parts[::2] = [_OUTSIDE.sub(lambda link: f"]({_target(page, link[1])})", part) for part in parts[::2]]
    parts[::2] = [_PICTURE.sub(_pictures, part) for part in parts[::2]]
    if page == "index":
        repository = [f"{title} <{SOURCE}/{file}>" for title, file in FILES.items()]
        for title, pages in [*((title, names.split()) for title, names in MAP.items()), ("Repository", repository)]:
            parts += [f"\n```{{toctree}}\n:hidden:\n:glob:\n:caption: {title}\n\n", "\n".join(pages), "\n```\n"]
    text[0] = "".join(parts)


def _target(page: str, link: str) -> str:
    """Return the address of a file of the repository that is no page."""
    path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), link))
    return link if path.startswith("docs/") else f"{SOURCE}/{path}"


def _pictures(found: re.Match[str]) -> str:
    """Show the dark or the light picture by the theme that the reader chose, which may differ from the system's."""
    given = dict(re.findall(r'(\w+)="([^"]*)"', found[2]))
    shown = {"only-dark": found[1], "only-light": given["src"]}
    return "".join(
        f"\n```{{image}} {file}\n:class: {when}\n:alt: {given['alt']}\n```\n" for when, file in shown.items()
    )


def _breakable(app: Sphinx, page: str, template: str, context: dict[str, str], doctree: object) -> None:
    """Let names in tables and in the headings of error codes break after a dot or underscore, so that they fit."""

    def broken(part: re.Match[str]) -> str:
        return _NAME.sub(lambda name: _BREAK.sub(r"\g<0><wbr>", name[0]), part[0])

    context["body"] = _NARROW.sub(broken, context.get("body", ""))


def setup(app: Sphinx) -> None:
    app.connect("source-read", _for_the_site)
    app.connect("html-page-context", _breakable)
