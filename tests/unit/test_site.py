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

from browser import DRIVER, PACKAGES, Browser, browser
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


@functools.cache
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


def test_first_page_is_the_readme_with_its_program_and_picture(site: Path) -> None:
    page = (site / "index.html").read_text("utf-8")
    for shown in ("kafka-eos", "demo.svg", "commit-tall.svg", "Rows per second", "EmbeddedKafka", "runbooks.html"):
        assert shown in page
    assert 'href="https://kafka-eos' not in page


def test_operations_are_the_first_part_of_the_map(site: Path) -> None:
    captions = re.findall(r'class="caption-text">([^<]+)', (site / "index.html").read_text("utf-8"))
    assert captions[0] == "Operations"


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


def test_pictures_for_github_are_rewritten(conf: ModuleType) -> None:
    source = [
        "[a](../conf/a.yml) [b](b.md#c) ![d](images/d.png) [e](../SECURITY.md#f) [g](../README.md#h)\n"
        '<picture>\n  <source media="(prefers-color-scheme: dark)" srcset="images/x-dark.svg">\n'
        '  <img alt="An x" src="images/x.svg">\n</picture>\n'
        "```python\ne[f](../G.md)\n```\n"
    ]
    conf._for_the_site(None, "page", source)
    links = "[a](../conf/a.yml) [b](b.md#c) ![d](images/d.png) {download}`e <../SECURITY.md>` [g](index.md#h)\n"
    assert source[0].startswith(links)
    assert "```{image} images/x-dark.svg\n:class: only-dark\n:alt: An x\n```" in source[0]
    assert "```{image} images/x.svg\n:class: only-light\n:alt: An x\n```" in source[0]
    assert source[0].endswith("```python\ne[f](../G.md)\n```\n")


def test_picture_for_a_phone_has_a_class_of_its_own(conf: ModuleType) -> None:
    narrow = '<source media="(max-width: 46em) and (prefers-color-scheme: dark)" srcset="t-dark.svg">'
    dark = '<source media="(prefers-color-scheme: dark)" srcset="x-dark.svg">'
    source = [f'<picture>\n{narrow}\n{dark}\n<img alt="x" src="x.svg">\n</picture>\n']
    conf._for_the_site(None, "page", source)
    classes = dict(re.findall(r"```{image} (\S+)\n:class: (.+)", source[0]))
    assert classes == {
        "x.svg": "only-light only-wide",
        "t-dark.svg": "only-dark only-narrow",
        "x-dark.svg": "only-dark only-wide",
    }


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


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Browser]:
    if shutil.which(DRIVER) is None:
        pytest.skip(f"there is no browser: install {PACKAGES}")
    with browser(tmp_path) as opened:
        yield opened


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("LOST_PARTS", "errors.html#lost[-_]parts"),
        ("KAFKA_EOS.LOST_PARTS", "errors.html#lost[-_]parts"),
        ("kafka.linger.ms", "options.html#named-kafka.linger.ms"),
        ("linger.ms", "options.html#named-kafka.linger.ms"),
        ("kafka_eos_rows_total", "metrics.html#named-kafka_eos_rows_total"),
        ("hanging transaction", "runbooks.html#a-transaction-that-no-coordinator-lists"),
        ("consumer stuck", "runbooks.html#consumers-stand-still"),
        ("isolation.level", "read.html#read-what-was-written"),
    ],
)
def test_search_shows_the_section_first(address: str, reader: Browser, words: str, found: str) -> None:
    reader.open(f"{address}/index.html")
    reader.send("POST", reader.find(".sidebar-search") + "/value", text=f"{words}{ENTER}")
    reader.send("POST", reader.find("#search-results li:first-child a") + "/click")
    reader.find(":target")
    assert re.search(rf"/{found}$", reader.run("return location.href"))


SCROLLING = """
const wide = e => e.scrollWidth > e.clientWidth + 1;
return [...document.querySelectorAll('pre')].filter(wide).map(e => e.textContent.slice(0, 60))
"""


def test_no_block_scrolls_at_1280_pixels(address: str, reader: Browser, site: Path) -> None:
    scrolling = {}
    for page in sorted(site.glob("*.html")):
        reader.open(f"{address}/{page.name}")
        scrolling[page.name] = reader.run(SCROLLING)
    assert {page: blocks for page, blocks in scrolling.items() if blocks} == {}


def test_input_has_a_copy_button_and_output_has_none(address: str, reader: Browser) -> None:
    reader.open(f"{address}/runbooks.html")
    reader.find("button.copybtn")
    assert reader.run("return document.querySelectorAll('.highlight-text button.copybtn').length") == 0
    borders = "return ['.highlight-text', '.highlight-default, .highlight-none'].map("
    borders += "kind => getComputedStyle(document.querySelector(kind).querySelector('pre')).borderLeftWidth)"
    output, given = reader.run(borders)
    assert output != given


def test_options_are_readable_on_a_phone(address: str, reader: Browser) -> None:
    phone = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
    reader.send("POST", "/goog/cdp/execute", cmd="Emulation.setDeviceMetricsOverride", params=phone)
    reader.open(f"{address}/options.html")
    assert reader.run("return document.documentElement.clientWidth") == 390
    shown = "[...document.querySelectorAll('table.named td')].filter(cell => cell.offsetWidth)"
    assert (
        reader.run(f"return {shown}.filter(cell => cell.getBoundingClientRect().right > 390).map(e => e.textContent)")
        == []
    )
    assert reader.run(f"return {shown}.filter(cell => !cell.textContent.trim()).length") == 0
    assert reader.run(f"return {shown}.length") > 200
