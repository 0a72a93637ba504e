"""How Sphinx makes a site of this folder: `make docs`. The pages stay Markdown that GitHub shows as well."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.transforms import SphinxTransform

ROOT = Path(__file__).parents[1]
VERSION = re.compile(r'^__version__ = "(.+)"', re.MULTILINE)
MAP = {
    "Operations": "runbooks monitor alerts deploy jobs performance upgrade",
    "Tutorials": "start standalone",
    "How-to": "batch stream records read changes migrate clusters secure access services",
    "Reference": "options cli errors metrics compatibility versions",
    "Explanation": "concepts comparison faq glossary",
    "Internals": "internals/*",
}
"""The left-hand map. A page that is missing here, or that does not exist, fails the build."""
WORDS = {
    "runbooks": {
        "Consumers stand still": ("consumer stuck", "consumers stuck", "consumers blocked", "lag grows"),
        "A transaction that no coordinator lists": ("hanging transaction", "hanging transactions"),
        "A marker is missing": ("missing marker", "KAFKA-20734"),
        "A checkpoint": ("lost checkpoint", "checkpoint deleted"),
        "The commit log": ("lost commit log", "commit log deleted"),
    },
    "read": {"Read what was written": ("isolation.level", "read_committed")},
}
"""Page -> heading -> what else people search for, of which the search shows this section first."""
NAMED_ROWS = {"options", "metrics"}
"""Pages whose tables begin with the name of an option, or of a metric, which the search finds."""

project = "kafka-eos"
(release,) = VERSION.findall((ROOT / "kafka_eos_sink" / "__init__.py").read_text("utf-8"))
extensions = ["myst_parser", "sphinx_copybutton"]
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
copybutton_selector = "div:not(.highlight-text) > div.highlight > pre"  # no button on what a command prints

_NARROW = re.compile(r"<td>.*?</td>|<h3>[^<]+", re.DOTALL)
_NAME = re.compile(r'(?<=<span class="pre">)[^<]+|(?<=<h3>).+')
_BREAK = re.compile(r"(?<=[a-z])\.(?=[a-z])|(?<=\w)_(?=[A-Za-z])")
_SHORT = re.compile(r'(<code class="docutils literal notranslate)">((?:<span class="pre">[^<]{1,24}</span>)</code>)')
_FENCED = re.compile(r"(^ *```.*?^ *```$)", re.MULTILINE | re.DOTALL)
_README = re.compile(r"\]\(\.\./README\.md(#[^)]*)?\)")
_FILE = re.compile(r"\[([^\]]*)\]\(((?:\.\./)+[A-Z]+\.md)(?:#[^)]*)?\)")
_INTO_DOCS = re.compile(r"""(?<=\]\()docs/|(?<=[" ])docs/(?=images/)""")
_BESIDE_DOCS = re.compile(r"(?<=\]\()(?=[A-Z]+\.md|notebooks/|conf/)")
_PICTURE = re.compile(r"<picture>\s*((?:<source[^>]*>\s*)+)<img([^>]*)>\s*</picture>")


def _for_the_site(app: Sphinx, page: str, text: list[str]) -> None:
    """Make the README the first page, and rewrite what only GitHub understands: pictures in two colour schemes."""
    whole = text[0]
    if page == "index":
        readme = (ROOT / "README.md").read_text("utf-8").partition("\n## Documents\n")[0]
        readme = _BESIDE_DOCS.sub("../", _INTO_DOCS.sub("", readme))
        whole = f"{readme}\n\n{whole.partition('<!-- the site begins here -->')[2]}"
    parts = _FENCED.split(whole)
    parts[::2] = [_PICTURE.sub(_pictures, _README.sub(r"](index.md\1)", part)) for part in parts[::2]]
    parts[::2] = [_FILE.sub(r"{download}`\1 <\2>`", part) for part in parts[::2]]
    if page == "index":
        for title, pages in MAP.items():
            parts += [f"\n```{{toctree}}\n:hidden:\n:glob:\n:caption: {title}\n\n", "\n".join(pages.split()), "\n```\n"]
    text[0] = "".join(parts)


def _pictures(found: re.Match[str]) -> str:
    """Show the dark or the light picture by the theme that the reader chose, which may differ from the system's."""
    given = dict(re.findall(r'(\w+)="([^"]*)"', found[2]))
    shown = [("", given["src"]), *re.findall(r'media="([^"]*)"\s+srcset="([^"]*)"', found[1])]
    return "".join(
        f"\n```{{image}} {file}\n:class: {_classes(media, len(shown) > 2)}\n:alt: {given['alt']}\n```\n"
        for media, file in shown
    )


def _classes(media: str, has_tall: bool) -> str:
    scheme = "only-dark" if "dark" in media else "only-light"
    return f"{scheme} {'only-narrow' if 'width' in media else 'only-wide'}" if has_tall else scheme


class SearchEntries(SphinxTransform):
    """Give each option, metric and error code, and other words for a section, an entry that the search shows first."""

    default_priority = 500  # before Sphinx collects the entries

    def apply(self) -> None:
        page = self.env.current_document.docname
        found = [*self._sections(page), *(self._rows() if page in NAMED_ROWS else ())]
        entries = [("single", name, target, "main", None) for name, target in found]
        self.document.insert(0, addnodes.index(entries=entries))

    def _sections(self, page: str) -> Iterator[tuple[str, str]]:
        words = dict(WORDS.get(page, {}))
        for section in self.document.findall(nodes.section):
            title, target = section[0].astext(), section["ids"][0]
            yield from ((word, target) for word in words.pop(title, ()))
            if page == "errors" and re.fullmatch("[A-Z]+(_[A-Z]+)+", title):
                yield f"KAFKA_EOS.{title}", target
        if words:
            raise ExtensionError(f"{page} has no heading {', '.join(words)}")

    def _rows(self) -> Iterator[tuple[str, str]]:
        for table in self.document.findall(nodes.table):
            heads = next(iter(table.findall(nodes.row)))
            table["classes"] += ["named", nodes.make_id(heads[1].astext())]
        for row in self.document.findall(nodes.row):
            if names := [name.astext() for name in row[0].findall(nodes.literal)]:
                row["ids"].append(f"named-{names[0].strip('*.')}")
                yield from ((name, row["ids"][0]) for name in names)


def _breakable(app: Sphinx, page: str, template: str, context: dict[str, str], doctree: object) -> None:
    """Let names in tables and headings of error codes break after a dot or underscore, and short code nowhere."""

    def broken(part: re.Match[str]) -> str:
        return _NAME.sub(lambda name: _BREAK.sub(r"\g<0><wbr>", name[0]), part[0])

    body = _SHORT.sub(r'\g<1> short">\g<2>', context.get("body", ""))
    context["body"] = _NARROW.sub(broken, body)


def setup(app: Sphinx) -> None:
    app.add_transform(SearchEntries)
    app.connect("source-read", _for_the_site)
    app.connect("html-page-context", _breakable)
