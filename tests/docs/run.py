"""Checks the site that `make docs` builds: every link leads to a file, every anchor to an element, nothing is loaded from
elsewhere, every page of docs/ is in the table of contents, and the search, asked in a headless Chromium, finds what
operators look for. With --pictures DIRECTORY also takes pictures of some pages. Asks nobody but itself.

Not here: the links as GitHub shows them, and the blocks of code (tests/it/docs/code_blocks.rs)."""

import functools
import html.parser
import http.server
import os
import pathlib
import re
import sys
import threading
import unittest
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parents[2]
BOOK = ROOT / os.environ.get("CARGO_TARGET_DIR", "target") / "book"
sys.path.insert(0, str(ROOT / "tests/page"))

from browser import Browser, until  # noqa: E402

# What operators and users of an API type.
SEARCHES = ("WRONGPASS", "Retry-After", "shadow", "429")
# No page has it.
NOT_FOUND = "xylophone"


class Page(html.parser.HTMLParser):
    def __init__(self, file):
        super().__init__()
        self.ids, self.links, self.loaded, self.base = set(), [], [], None
        self.feed(file.read_text())

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        if "id" in found:
            self.ids.add(found["id"])
        if tag == "base":
            self.base = found.get("href")
        elif tag == "a" and "href" in found:
            self.links.append(found["href"])
        elif address := found.get("src") or found.get("href"):
            self.loaded.append(address)


class Links(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.pages = {file: Page(file) for file in BOOK.rglob("*.html")}
        assert len(cls.pages) > 20, f"{BOOK} has no site: make docs"

    def file_of(self, page, path):
        base = BOOK if self.pages[page].base == "/" else page.parent
        file = pathlib.Path(os.path.normpath(base / path)) if path else page
        return file / "index.html" if file.is_dir() else file

    def test_every_link_leads_to_a_file_and_every_anchor_to_an_element(self):
        wrong, links = [], 0
        for page, content in self.pages.items():
            for link in content.links + content.loaded:
                parts = urllib.parse.urlsplit(link)
                if parts.scheme:
                    continue
                links += 1
                file = self.file_of(page, urllib.parse.unquote(parts.path))
                anchor = urllib.parse.unquote(parts.fragment)
                if not file.is_relative_to(BOOK) or not file.is_file():
                    wrong.append(f"{page.relative_to(BOOK)}: {link}: no such file")
                elif anchor and anchor not in self.pages[file].ids:
                    wrong.append(f"{page.relative_to(BOOK)}: {link}: no such heading")
        self.assertGreater(links, 1000)
        self.assertEqual(wrong, [])

    def test_nothing_is_loaded_from_elsewhere(self):
        loaded = {(page.name, address) for page, content in self.pages.items() for address in content.loaded}
        self.assertEqual({each for each in loaded if re.match(r"(?!data:)[a-z]+:|//", each[1])}, set())
        for sheet in BOOK.rglob("*.css"):
            self.assertNotRegex(sheet.read_text(), r"(?:url\(|@import)\s*['\"]?(?:https?:)?//", sheet.name)

    def test_names_are_not_emphasis(self):
        """Two names with `*` in one line, without backticks, lose the asterisks."""
        found = [(page.name, text) for page in self.pages for text in re.findall(r"<em>[^<]*_[^<]*</em>", page.read_text())]
        self.assertEqual(found, [])

    def test_every_page_of_docs_is_in_the_table_of_contents(self):
        listed = re.findall(r"\]\(([^)]+)\)", (ROOT / "docs/SUMMARY.md").read_text())
        pages = {file.name for file in (ROOT / "docs").glob("*.md")} - {"SUMMARY.md"}
        self.assertEqual(pages - set(listed), set(), "list these pages in docs/SUMMARY.md")
        self.assertEqual(len(listed), len(set(listed)))


class Files(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


class Server(http.server.ThreadingHTTPServer):
    def handle_error(self, *_):
        """The browser leaves a page before it has read all of its files."""


class Search(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server(("127.0.0.1", 0), functools.partial(Files, directory=BOOK))
        threading.Thread(target=cls.server.serve_forever, daemon=True).start()
        cls.addClassCleanup(cls.server.server_close)
        cls.addClassCleanup(cls.server.shutdown)
        cls.site = f"http://127.0.0.1:{cls.server.server_address[1]}"
        cls.browser = Browser()
        cls.addClassCleanup(cls.browser.close)

    def results(self, text):
        """The addresses that the site's search lists for a text, best first, as a reader types it."""
        self.browser.open(self.site + "/index.html")
        until("the page is complete", lambda: self.browser.run("return document.readyState") == "complete")
        self.browser.press("s")
        until("the search is open", lambda: self.browser.run(
            "const bar = document.querySelector('#mdbook-searchbar'); "
            "return document.activeElement === bar && bar.offsetParent !== null"))
        self.browser.press(*text)
        shown = until("the search answers", lambda: self.browser.run(
            "return document.querySelector('#mdbook-searchresults-header').innerText"))
        until(f"it answers for {text}", lambda: f"'{text}'" in self.browser.text("#mdbook-searchresults-header"))
        self.assertIn("search result", shown)
        return self.browser.run("return [...document.querySelectorAll('#mdbook-searchresults a')].map(a => a.href)")

    def test_the_search_finds_pages_that_contain_the_text(self):
        for text in SEARCHES:
            with self.subTest(text):
                found = self.results(text)
                self.assertTrue(found, "nothing found")
                for address in found[:3]:
                    self.browser.open(address)
                    self.assertIn(text.lower(), self.browser.text("main").lower(), address)
                    # The reader sees where.
                    until("the text is marked", lambda: self.browser.run(
                        "return document.querySelectorAll('main mark').length > 0"))

    def test_the_search_finds_nothing_for_a_word_that_no_page_has(self):
        self.assertEqual(self.results(NOT_FOUND), [])

    def test_the_console_is_silent(self):
        self.browser.console()
        for page in ("index.html", "POLICY.html", "repository/index.html"):
            self.browser.open(f"{self.site}/{page}")
        self.assertEqual([entry for entry in self.browser.console() if entry["level"] == "SEVERE"], [])


def take_pictures(directory):
    """Pages in light and dark, wide and on a telephone."""
    directory.mkdir(parents=True, exist_ok=True)
    Search.setUpClass()
    try:
        for name in ("index", "SETTINGS", "COMPARED", "LANGUAGES", "repository/index", "repository/config/examples/in-flight/index"):
            for scheme, width, height in (("light", 1280, 1600), ("dark", 1280, 1600), ("light", 420, 900)):
                Search.browser.look(scheme, width, height)
                Search.browser.open(f"{Search.site}/{name}.html")
                file = directory / f"{name.replace('/', '-')}-{scheme}-{width}.png"
                file.write_bytes(Search.browser.picture())
    finally:
        Search.doClassCleanups()


if "--pictures" in sys.argv:
    take_pictures(pathlib.Path(sys.argv[sys.argv.index("--pictures") + 1]))
result = unittest.TextTestRunner(verbosity=2).run(unittest.defaultTestLoader.loadTestsFromModule(sys.modules[__name__]))
failed = len({test.id().split(" ")[0] for test, _ in result.failures + result.errors})
print(f"docs: {result.testsRun - failed} passed, {failed} failed")
sys.exit(0 if result.wasSuccessful() and result.testsRun else 1)
