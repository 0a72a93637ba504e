"""The site that `make docs` makes of docs/: complete, searchable, and without anything from another host."""

from __future__ import annotations

import functools
import http.server
import importlib.util
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from browser import DRIVER, PACKAGES, browser
from documents import ROOT, error_codes, read

DOCS = ROOT / "docs"
LOADED = {
    "script": ("src",),
    "link": ("href",),
    "img": ("src", "srcset"),
    "source": ("src", "srcset"),
    "iframe": ("src",),
}
"""Tags -> attributes with what a browser loads by itself."""
ENTER = "\ue007"
"""The key, in WebDriver."""


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


@pytest.fixture(scope="module")
def conf() -> ModuleType:
    spec = importlib.util.spec_from_file_location("conf", DOCS / "conf.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_site_is_built_without_a_warning(build: tuple[str, Path]) -> None:
    assert build[0] == "exit status 0"


def test_every_block_of_code_is_shown_as_code(site: Path) -> None:
    """Lines indented by four below a list are a paragraph of its last item."""
    pages = {path.relative_to(DOCS).with_suffix(".html"): len(read(path).blocks) for path in DOCS.rglob("*.md")}
    shown = {page: (site / page).read_text("utf-8").count("<pre") for page in pages}
    assert {str(page): (number, shown[page]) for page, number in pages.items() if shown[page] != number} == {}


def test_no_page_loads_anything_from_another_host(site: Path) -> None:
    loads = {path.name: Page(path).loads for path in site.rglob("*.html")}
    assert all(loads.values()), "the search for scripts and styles is broken"
    assert [(page, each) for page, loaded in loads.items() for each in loaded if is_elsewhere(each)] == []
    files = {path.name: path.read_text("utf-8") for kind in ("css", "svg") for path in site.rglob(f"*.{kind}")}
    assert len(files) > 5
    address = re.compile(r"(?:url\(|@import|href=)\s*[\"']?([^\"')]+)")
    assert [(name, each) for name, text in files.items() for each in address.findall(text) if is_elsewhere(each)] == []


def test_every_error_code_has_its_anchor(site: Path) -> None:
    codes = error_codes()
    assert len(codes) > 80
    assert sorted({code.lower() for code in codes} - Page(site / "errors.html").ids) == []


def test_every_alert_leads_to_its_anchor(site: Path) -> None:
    rules = yaml.safe_load((ROOT / "conf" / "alert-rules.yml").read_text("utf-8"))
    addresses = [rule["annotations"]["runbook_url"] for group in rules["groups"] for rule in group["rules"]]
    assert len(addresses) >= 10
    targets = [re.sub(r".*/docs/|\.md", "", address).partition("#") for address in addresses]
    assert [target for page, _, target in targets if target not in Page(site / f"{page}.html").ids] == []


@pytest.fixture
def address(site: Path) -> Iterator[str]:
    """The site on a server of this machine: a browser treats files in another way."""
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


def test_reader_finds_an_error_code_with_the_search(address: str, tmp_path: Path) -> None:
    if shutil.which(DRIVER) is None:
        pytest.skip(f"there is no browser: install {PACKAGES}")
    with browser(tmp_path) as reader:
        reader.open(f"{address}/index.html")
        reader.send("POST", reader.find(".sidebar-search") + "/value", text=f"LOST_PARTS{ENTER}")
        reader.send("POST", reader.find("#search-results li a[href*='errors.html#lost']") + "/click")
        reader.find(":target")
        assert re.search(r"/errors\.html.*#lost[-_]parts$", reader.run("return location.href"))
        title = "return document.querySelector(':target').closest('section').querySelector('h3').textContent"
        assert reader.run(title).startswith("LOST_PARTS")
