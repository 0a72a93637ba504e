"""The site that `make docs` makes of docs/: complete, searchable, and without anything from another host."""

from __future__ import annotations

import re
import subprocess
import sys
from functools import cache
from html.parser import HTMLParser
from pathlib import Path

import pytest
import yaml

from documents import README, ROOT, error_codes, read

DOCS = ROOT / "docs"
LOADED = {
    "script": ("src",),
    "link": ("href",),
    "img": ("src", "srcset"),
    "source": ("src", "srcset"),
    "iframe": ("src",),
}
"""Tags -> attributes with what a browser loads by itself."""


class Page(HTMLParser):
    """What a built page loads, and its anchors."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.ids: set[str] = set()
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.ids.add(given.get("id") or "")
        if tag == "link" and not {"stylesheet", "icon", "preload", "modulepreload"} & {
            *(given.get("rel") or "").split()
        }:
            return
        self.loads += [given[name] or "" for name in LOADED.get(tag, ()) if name in given]


@cache
def built(path: Path) -> Page:
    return Page(path)


def is_elsewhere(address: str) -> bool:
    return re.match(r"\s*(https?:)?//", address) is not None


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """What Sphinx prints, and the folder of the pages."""
    folder = tmp_path_factory.mktemp("site")
    options = ("-n", "-W", "--keep-going", "--quiet", "-b", "html", "-d", str(folder / "doctrees"))
    command = [sys.executable, "-m", "sphinx", *options, str(DOCS), str(folder / "html")]
    sphinx = subprocess.run(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    return sphinx.stdout or f"exit status {sphinx.returncode}", folder / "html"


@pytest.fixture(scope="module")
def site(build: tuple[str, Path]) -> Path:
    return build[1]


def test_site_is_built_without_a_warning(build: tuple[str, Path]) -> None:
    assert build[0] == "exit status 0"


def test_every_block_of_code_is_shown_as_code(site: Path) -> None:
    """Lines indented by four below a list are a paragraph of its last item."""
    pages = {path.relative_to(DOCS).with_suffix(".html"): len(read(path).blocks) for path in DOCS.rglob("*.md")}
    pages[Path("index.html")] += len(read(README).blocks)
    shown = {page: (site / page).read_text("utf-8").count("<pre") for page in pages}
    assert {str(page): (number, shown[page]) for page, number in pages.items() if shown[page] != number} == {}


def test_no_page_loads_anything_from_another_host(site: Path) -> None:
    loads = {path.name: built(path).loads for path in site.rglob("*.html")}
    assert all(loads.values()), "the search for scripts and styles is broken"
    assert [(page, each) for page, loaded in loads.items() for each in loaded if is_elsewhere(each)] == []
    files = {path.name: path.read_text("utf-8") for kind in ("css", "svg") for path in site.rglob(f"*.{kind}")}
    assert len(files) > 5
    address = re.compile(r"(?:url\(|@import|href=)\s*[\"']?([^\"')]+)")
    assert [(name, each) for name, text in files.items() for each in address.findall(text) if is_elsewhere(each)] == []


def test_every_error_code_has_its_anchor(site: Path) -> None:
    codes = error_codes()
    assert len(codes) > 80
    assert sorted({code.lower() for code in codes} - built(site / "errors.html").ids) == []


def test_every_alert_leads_to_its_anchor(site: Path) -> None:
    rules = yaml.safe_load((ROOT / "conf" / "alert-rules.yml").read_text("utf-8"))
    addresses = [rule["annotations"]["runbook_url"] for group in rules["groups"] for rule in group["rules"]]
    assert len(addresses) >= 10
    targets = [re.sub(r".*/docs/|\.md", "", address).partition("#") for address in addresses]
    assert [target for page, _, target in targets if target not in built(site / f"{page}.html").ids] == []


def test_no_link_of_the_site_is_dead(site: Path) -> None:
    """Links to the repository's other files lead to copies of them; its own host exists only after a release."""
    dead = []
    for page in site.rglob("*.html"):
        for link in re.findall(r'<a [^>]*?href="([^"]+)"', page.read_text("utf-8")):
            target, _, anchor = link.partition("#")
            if "example.com" in link:
                dead.append((page.name, link))
            elif re.match(r"[a-z]+:", link) is None:
                to = page.parent / target if target else page
                if not to.exists() or (anchor and to.suffix == ".html" and anchor not in built(to).ids):
                    dead.append((page.name, link))
    assert dead == []
