#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The site in a real browser: no error, no request to elsewhere, links that lead somewhere, readable contrast in light
and dark (WCAG AA), no page wider than a phone, everything reachable by keyboard, hostile cards that do nothing, and a
search over 1,000 packages.

    browser_test.py KILN_REGISTRY_BINARY KILN_BINARY WRITE_FIXTURE WRITE_MANY [--record] [--screenshots FOLDER]

Without a Chromium it is skipped. --record writes what making the sites took into results/.
"""

import datetime
import json
import os
import pathlib
import platform
import re
import resource
import subprocess
import sys
import tempfile
import time
import unittest

import browser

HERE = pathlib.Path(__file__).resolve().parent
GEGLU = HERE.parents[1] / "packages/geglu-mlp"
HOSTILE = """# Card

<script>document.title = "taken over"</script>

<img src="https://evil.example/a.png" onerror="document.title = 'taken over'">

![picture](https://evil.example/b.png) [link](javascript:document.title='taken%20over')
[other](https://evil.example/ "x")

<iframe src="https://evil.example/"></iframe> <style>body { display: none }</style>

| M | kiln | rival | error, kiln |
|---|---|---|---|
| <b>1</b> | 1.0 | 1.5 | 2e-3 |
"""

# Text whose contrast with what lies behind it is below 4.5, or below 3 where it is large: WCAG 2.1, 1.4.3.
CONTRAST = r"""(() => {
  const parse = (color) => color.match(/[\d.]+/g).map(Number);
  const light = ([r, g, b]) => {
    const [x, y, z] = [r, g, b].map((c) => (c /= 255) <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const behind = (node) => {
    for (; node; node = node.parentElement) {
      const color = parse(getComputedStyle(node).backgroundColor);
      if (color.length < 4 || color[3] > 0) return color;
    }
    return [255, 255, 255];
  };
  const ratio = (a, b) => (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  const bad = [];
  let count = 0, least = 99;
  const check = (node, color, needed) => {
    const found = ratio(light(parse(color)), light(behind(node)));
    ++count, least = Math.min(least, found);
    if (found < needed) bad.push(`${node.tagName} ${node.textContent.slice(0, 30)}: ${found.toFixed(2)}`);
  };
  for (const details of document.querySelectorAll("details")) details.open = true;
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const node = walk.currentNode.parentElement;
    if (!walk.currentNode.data.trim() || node.closest("title, script") || !node.getClientRects().length) continue;
    const style = getComputedStyle(node);
    const size = parseFloat(style.fontSize);
    const large = size >= 24 || (size >= 18.66 && style.fontWeight >= 700);
    check(node, node.closest("svg") ? style.fill : style.color, large ? 3 : 4.5);
  }
  for (const mark of document.querySelectorAll("svg [class^=s]")) check(mark, getComputedStyle(mark).fill, 3);
  return {bad, count, least};
})()"""

FOCUSED = """(() => {
  const node = document.activeElement;
  const style = getComputedStyle(node);
  return [node.tagName, node.getAttribute("href") || node.id || node.className, style.outlineStyle !== "none"];
})()"""


def command(*arguments):
    subprocess.run([REGISTRY, *arguments], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def make_site(registry, out):
    """Wall and CPU seconds of a first run, and how much it wrote."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    command("site", out, "-q", "--registry", registry)
    wall, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    files = [path for path in out.rglob("*") if path.is_file()]
    return {"wall_s": round(wall, 3), "files": len(files), "bytes": sum(path.stat().st_size for path in files),
            "cpu_s": round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 3)}


class Site(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.work = pathlib.Path(folder.name)
        subprocess.run([FIXTURE, cls.work], check=True)
        registry = ["--registry", cls.work / "registry"]
        command("publish", *registry, cls.work / "one", cls.work / "next", cls.work / "acme")
        (cls.work / "hostile.md").write_text(HOSTILE)
        command("describe", *registry, "acme-op", cls.work / "hostile.md")
        long = cls.work / "long.md"  # a card with a table of each kind that was ever timed
        long.write_text("\n\n".join((GEGLU / name).read_text() for name in ("CARD.md", "bench/TIMES.md")))
        command("describe", *registry, "tiny-op@2", long)
        command("site", cls.work / "site", *registry, "--url", "https://kernels.example.org")
        cls.site = cls.work / "site"
        cls.pages = sorted(cls.site.rglob("*.html"))
        cls.chromium = browser.Browser(browser.find())
        cls.addClassCleanup(cls.chromium.close)

    def setUp(self):
        self.chromium.requests.clear()
        self.chromium.errors.clear()
        self.chromium.view(1280, 900)

    def open(self, page, root=None):
        self.chromium.open((root or self.site).joinpath(page).as_uri())

    def test_no_error_and_no_request_to_elsewhere(self):
        for page in self.pages:
            self.open(page)
            self.assertEqual(self.chromium.errors, [], page)
            self.assertNotIn("taken over", self.chromium.run("document.title"))
        self.assertEqual([url for url in self.chromium.requests if not url.startswith("file:///")], [])
        self.assertGreater(len(self.chromium.requests), len(self.pages))  # styles too

    def test_what_one_chooses_by_stands_on_the_first_screen(self):
        self.open("packages/tiny-op/2.html")
        ends = self.chromium.run("""[".first", ".summary", ".plot svg[role=img]"].map((each) =>
            document.querySelector(each).getBoundingClientRect().bottom)""")
        self.assertEqual([end for end in ends if end > 900], [], ends)
        self.assertLess(self.chromium.run("document.documentElement.scrollHeight"), 5000)

    def test_the_policy_stops_what_a_page_tries(self):
        self.open("index.html")
        self.chromium.run("document.body.append(Object.assign(new Image(), {src: 'https://evil.example/x.png'}))")
        self.chromium.run("document.body.insertAdjacentHTML('beforeend', '<p id=x style=\"color: red\">x</p>')")
        self.assertNotEqual(self.chromium.run("getComputedStyle(document.getElementById('x')).color"), "rgb(255, 0, 0)")
        self.assertTrue(self.chromium.errors)

    def test_links_lead_somewhere(self):
        count = 0
        for page in self.pages:
            text = page.read_text()
            ids = re.findall(r' id="([^"]+)"', text)
            self.assertEqual(len(ids), len(set(ids)), page)
            for link in re.findall(r'(?:href|src)="([^"]+)"', text):
                count += 1
                if link.startswith("#"):
                    self.assertIn(link[1:], ids, page)
                elif not link.startswith(("https://", "http://")):
                    self.assertTrue((page.parent / link.split("#")[0]).is_file(), (page, link))
        self.assertGreater(count, 20)

    def test_contrast(self):
        for dark in (False, True):
            self.chromium.view(1280, 900, dark=dark)
            for page in self.pages:
                self.open(page)
                found = self.chromium.run(CONTRAST)
                self.assertEqual(found["bad"], [], (page, dark))
                self.assertGreater(found["count"], 10)
                print(f"contrast of {page.name}, {'dark' if dark else 'light'}: at least {found['least']:.2f} "
                      f"of {found['count']}")

    def test_a_phone_scrolls_in_one_direction(self):
        self.chromium.view(360, 740, phone=True)
        for page in self.pages:
            self.open(page)
            self.assertLessEqual(self.chromium.run("document.documentElement.scrollWidth"), 360, page)

    def test_keyboard(self):
        self.open("packages/tiny-op/index.html")
        wanted = self.chromium.run("""Array.from(document.querySelectorAll("a, summary, [tabindex='0']"))
            .filter((each) => each.checkVisibility()).length""")
        reached = []
        for _ in range(wanted):
            self.chromium.press("Tab")
            reached.append(self.chromium.run(FOCUSED))
        self.assertEqual(reached[0][1], "#main")
        self.assertTrue(all(tag != "BODY" and outlined for tag, _, outlined in reached), reached)
        self.open("index.html")
        self.chromium.press("/", text="/")
        self.assertEqual(self.chromium.run(FOCUSED)[1], "query")
        self.type("TINY 2")
        self.assertEqual(self.shown(), ["tiny-op"])
        self.assertEqual(self.chromium.run("document.getElementById('count').textContent"), "1 of 2 packages")
        self.chromium.press("Escape")
        self.assertEqual(self.shown(), ["acme-op", "tiny-op"])
        self.type("acme")
        self.chromium.press("Tab")
        self.chromium.press("Enter")
        for _ in range(100):
            if "acme-op" in self.chromium.run("location.href + document.readyState"):
                break
            time.sleep(0.05)
        self.assertIn("packages/acme-op/index.html", self.chromium.run("location.href"))

    def type(self, text):
        for letter in text:
            self.chromium.press(letter, text=letter)

    def shown(self):
        return self.chromium.run("Array.from(document.querySelectorAll('#packages > li:not([hidden]) h2'), "
                                 "(each) => each.textContent)")

    def test_without_scripts_all_is_listed(self):
        self.chromium.call("Emulation.setScriptExecutionDisabled", value=True)
        self.addCleanup(self.chromium.call, "Emulation.setScriptExecutionDisabled", value=False)
        self.open("index.html")
        self.assertEqual(self.shown(), ["acme-op", "tiny-op"])
        self.assertFalse(self.chromium.run("document.querySelector('.search').checkVisibility()"))

    def test_the_plots_of_a_card(self):
        self.open("packages/tiny-op/index.html")
        plots = self.chromium.run("document.querySelectorAll('figure.plot svg[role=img]').length")
        self.assertGreaterEqual(plots, 20)
        outside = self.chromium.run("""Array.from(document.querySelectorAll("figure.plot .wide > svg")).filter((svg) => {
            const box = svg.getBBox(), view = svg.viewBox.baseVal;
            return box.x < 0 || box.y < 0 || box.x + box.width > view.width || box.y + box.height > view.height;
          }).length""")
        self.assertEqual(outside, 0)

    def test_a_thousand_packages(self):
        results = {}
        for count in (1, 1000):
            registry, out = self.work / f"registry-{count}", self.work / f"site-{count}"
            subprocess.run([MANY, registry, str(count)], check=True)
            results[str(count)] = make_site(registry, out)
            self.assertEqual(results[str(count)]["files"], 4 + 2 * count)
        print(json.dumps(results))
        self.assertLess(results["1000"]["cpu_s"], 60)
        self.open("index.html", self.work / "site-1000")
        self.chromium.press("/", text="/")
        self.type("package-77")
        self.assertEqual(len(self.shown()), 11)  # 77 and 770 to 779
        results["search_ms"] = round(self.chromium.run(
            "(() => { const began = performance.now(); search(); return performance.now() - began; })()"), 2)
        self.assertLess(results["search_ms"], 100)
        if RECORD:
            cpu = re.search(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text())
            (HERE / "results/site.json").write_text(json.dumps({
                "what": "kiln registry site, a first run, by number of packages of one version and two variants",
                "cpu": cpu[1] if cpu else platform.processor(), "cpus": os.cpu_count(),
                "load": round(os.getloadavg()[0], 1), "date": datetime.date.today().isoformat(),
                "results": results}, indent=2) + "\n")

    def test_screenshots(self):
        if SHOTS is None:
            self.skipTest("no --screenshots FOLDER")
        SHOTS.mkdir(parents=True, exist_ok=True)
        for name, width, dark, phone in (("desktop", 1280, False, False), ("dark", 1280, True, False),
                                         ("phone", 390, False, True)):
            self.chromium.view(width, 900, dark=dark, phone=phone)
            for page in ("index", "packages/tiny-op/index"):
                self.open(page + ".html")
                self.chromium.screenshot(SHOTS / f"{name}-{page.split('/')[-2] if '/' in page else page}.png", 0, 1400)


if __name__ == "__main__":
    REGISTRY, KILN, FIXTURE, MANY = map(os.path.abspath, sys.argv[1:5])
    RECORD = "--record" in sys.argv
    SHOTS = pathlib.Path(sys.argv[sys.argv.index("--screenshots") + 1]) if "--screenshots" in sys.argv else None
    if browser.find() is None:
        print("skipped: no Chromium is installed")
        sys.exit(77)
    unittest.main(argv=sys.argv[:1], verbosity=2)
