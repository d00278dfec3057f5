#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The site that ci/docs makes: whole, of the whole of docs/, and of nothing from elsewhere.

    site_test.py [SITE]     default: makes one; skipped where 'ci/setup docs' was never run
"""

import html.parser
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import urllib.parse

SOURCE = pathlib.Path(__file__).resolve().parents[2]
# An element that a browser fetches by itself, and the attribute that says what.
FETCHED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "object": "data", "embed": "src", "video": "src",
           "audio": "src", "input": "src", "link": "href"}
NO_FETCH = {"canonical", "prev", "next", "alternate", "edit"}  # of a link's rel


class Page(html.parser.HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.links, self.fetched, self.ids, self.policy, self.text = [], [], set(), "", []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.ids |= {attributes.get("id"), attributes.get("name")}
        if tag == "meta" and attributes.get("http-equiv") == "Content-Security-Policy":
            self.policy = attributes["content"]
        if tag == "a" and attributes.get("href"):
            self.links.append(attributes["href"])
        if attributes.get(FETCHED.get(tag)) and not NO_FETCH & set((attributes.get("rel") or "").split()):
            self.fetched.append(attributes[FETCHED[tag]])
        self.fetched += re.findall(r"url\(([^)]*)\)", attributes.get("style") or "")

    def handle_data(self, data):
        self.text.append(data)


class Site(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.pages = {path: Page(path.read_text(encoding="utf-8")) for path in SITE.rglob("*.html")}
        cls.written = {path: page for path, page in cls.pages.items() if "api" not in path.relative_to(SITE).parts}

    def place(self, page, link):
        """The file and the fragment that a link of a page leads to; no file for one to elsewhere."""
        parts = urllib.parse.urlsplit(link)
        if parts.scheme or parts.netloc:
            return None, ""
        path = urllib.parse.unquote(parts.path)
        base = SITE if page.name == "404.html" or path.startswith("/") else page.parent
        to = (base / path.lstrip("/")).resolve() if path else page
        return (to / "index.html" if to.is_dir() else to), parts.fragment

    def test_every_page_of_docs_is_there_and_in_the_menu(self):
        self.assertGreater(len(self.written), 20)
        led_to = {self.place(SITE / "index.html", link)[0] for link in self.pages[SITE / "index.html"].links}
        for path in (SOURCE / "docs").glob("*.md"):
            with self.subTest(path.name):
                page = SITE / "docs" / path.with_suffix(".html").name
                self.assertIn(page, self.pages)
                self.assertIn(page, led_to)

    def test_links_lead_to_what_is_there(self):
        for path, page in self.pages.items():
            for link in page.links + page.fetched:
                if link.startswith(("javascript:", "data:")):
                    continue
                to, fragment = self.place(path, link)
                with self.subTest(page=str(path.relative_to(SITE)), link=link):
                    self.assertTrue(to is None or to.is_file(), "there is no such file")
                    if fragment and to in self.written:
                        self.assertIn(urllib.parse.unquote(fragment), self.pages[to].ids, "there is no such place")

    def test_nothing_is_requested_from_elsewhere(self):
        for path, page in self.pages.items():
            for url in page.fetched:
                with self.subTest(page=str(path.relative_to(SITE)), url=url):
                    self.assertTrue(self.place(path, url)[0] or url.startswith("data:") or url == "javascript:void(0)")
        for path, page in self.written.items():
            sources = [word for rule in page.policy.split(";") for word in rule.split()[1:]]
            with self.subTest(page=str(path.relative_to(SITE))):
                self.assertIn("default-src 'self'", page.policy)
                self.assertLessEqual(set(sources), {"'self'", "'unsafe-inline'", "data:", "blob:"})
        for path in SITE.rglob("*.css"):
            urls = re.findall(r"url\(\s*[\"']?([^\"')]*)|@import\s+[\"']([^\"']*)", path.read_text(encoding="utf-8"))
            for url in (a or b for a, b in urls):
                with self.subTest(style=path.name, url=url[:60]):
                    self.assertFalse(re.match(r"(?:https?:)?//", url))

    def test_markdown_became_what_it_means(self):
        """A list that follows a paragraph without an empty line, or a fence in a list, stays text."""
        for path, page in self.written.items():
            with self.subTest(str(path.relative_to(SITE))):
                for text in page.text:
                    self.assertNotRegex(text, r"(?m)```|^\s*\|\s*-{3}|^- \*\*")

    def test_the_headers_have_their_pages(self):
        for path in (SOURCE / "loader/include/kiln").iterdir():
            with self.subTest(path.name):
                pages = [p for p in (SITE / "api").glob("*_8h*.html")
                         if p.name.split("_2")[-1] in (f"{path.stem}_8{path.suffix[1:]}.html",)]
                self.assertEqual(len({p for p in pages if "sdk" not in p.name}), 1)
        words = " ".join(self.pages[SITE / "api/kernel_8hpp.html"].text)
        self.assertIn("get_kernel", words)
        self.assertIn("the whole pipeline in one call", words)
        self.assertTrue(any("api/kernel_8hpp.html" in link for link in self.pages[SITE / "docs/API.html"].links))

    def test_a_search_finds_words_of_the_pages(self):
        index = (SITE / "search/search_index.json").read_text(encoding="utf-8")
        for word in ("Air gap", "kiln_require", "kiln.torch.replace"):
            self.assertIn(word, index)


class Refusals(unittest.TestCase):
    """A tree whose documents lead nowhere makes no site."""

    def refused(self, *broken):
        """What ci/docs says of a copy of the tree whose page has these links as well."""
        with tempfile.TemporaryDirectory() as folder:
            tree = pathlib.Path(folder)
            subprocess.run(f"git ls-files -z | tar --null -T - -c | tar -C '{tree}' -x", shell=True, check=True, cwd=SOURCE)
            (tree / "build").mkdir()
            (tree / "build/docs-python").symlink_to(SOURCE / "build/docs-python")
            with (tree / "docs/C.md").open("a", encoding="utf-8") as page:
                page.write("\n" + " ".join(f"[a]({link})" for link in broken) + "\n")
            done = subprocess.run([tree / "ci/docs"], capture_output=True, text=True)
            self.assertNotEqual(done.returncode, 0, done.stdout)
            return done.stderr

    def test_a_link_that_leads_to_no_page(self):
        said = self.refused("NOWHERE.md", "../loader", "/CPP.md", "../.clang-format")
        for text in ("NOWHERE.md is not there", "../loader is a folder", "/CPP.md is not there", "../.clang-format is hidden"):
            self.assertIn("docs: docs/C.md: " + text, said)

    def test_a_link_to_no_place_of_a_page(self):
        self.assertIn("link '#nowhere', but there is no such anchor", self.refused("#nowhere"))


if __name__ == "__main__":
    if not (SOURCE / "build/docs-python/installed.lock").exists() or not shutil.which("doxygen"):
        print("skipped: run 'ci/setup docs'")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as made:
        SITE = pathlib.Path(sys.argv.pop(1) if len(sys.argv) > 1 else made + "/docs/site").resolve()
        if not SITE.exists():
            subprocess.run([SOURCE / "ci/docs", "--out", SITE.parent], check=True)
        unittest.main()
