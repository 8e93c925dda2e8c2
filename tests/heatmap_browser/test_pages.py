"""Looks at heat map pages in a headless Chromium: real mouse and key events in, pixels and the accessibility tree out.

usage: test_pages.py MAKE_PAGES      (the program that writes the pages)"""
import math
import os
import re
import subprocess
import sys
import tempfile
import unittest

from webdriver import Browser, find_browser

N = 12


def luminance(pixel):
    return 0.2126 * pixel[0] + 0.7152 * pixel[1] + 0.0722 * pixel[2]


class Pages(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        subprocess.run([MAKE_PAGES, cls.folder.name], check=True)
        cls.browser = Browser(*find_browser())
        cls.addClassCleanup(cls.browser.close)

    def open(self, name):
        self.browser.open(os.path.join(self.folder.name, name))
        self.assertEqual(self.browser.errors(), [])

    def cell(self, r, c, rows=N, cols=N):
        """The middle of a cell in the page's pixels, from where the map is and where its axes end; the whole map is in view."""
        x, y, w, h = self.browser.run(
            "document.getElementById('map').scrollIntoView({block: 'nearest'});"
            "const f = document.getElementById('map').getBoundingClientRect(); return [f.x + box.x, f.y + box.y, box.w, box.h]")
        return x + (c + 0.5) * w / cols, y + (r + 0.5) * h / rows

    def hover(self, r, c, rows=N, cols=N):
        self.browser.mouse(("move", *self.cell(r, c, rows, cols)))
        return self.browser.text("#pair")

    def click(self, x, y):
        self.browser.mouse(("move", x, y), "down", "up")

    def accessible(self, role):
        nodes = self.browser.devtools("Accessibility.getFullAXTree")["nodes"]
        return [node for node in nodes if node.get("role", {}).get("value") == role and not node.get("ignored")]

    def test_pointing_at_a_cell_tells_the_pair_and_its_weight(self):
        self.open("heads.html")
        self.assertEqual(self.hover(8, 8), "sitting (query 8) → sitting (key 8): 0.7500")
        self.assertEqual(self.hover(8, 0), "sitting (query 8) → Alice (key 0): 0.2500")
        self.assertEqual(self.hover(2, 9), "beginning (query 2) → by (key 9): 0")  # masked
        self.assertEqual(self.hover(11, 10), "line↵end (query 11) → hér (key 10): under 1.5e-5")  # not masked: as far as the page knows

    def test_pixels_darken_with_the_weight_and_mark_what_is_none(self):
        self.open("heads.html")
        self.browser.mouse(("move", 1, 1))
        places = {name: self.cell(*at) for name, at in {"strong": (8, 8), "weak": (8, 0), "none": (8, 3), "masked": (2, 9)}.items()}
        picture = self.browser.screenshot()
        strong, weak, none = (luminance(picture(*places[name])) for name in ("strong", "weak", "none"))
        self.assertLess(strong + 30, weak)
        self.assertLess(weak + 30, none)
        self.assertGreater(none, 250)
        self.assertEqual(picture(*places["masked"]), (241, 239, 243))
        self.assertEqual(self.browser.text("#masked"), "exactly 0, as if masked")
        self.browser.run("document.getElementById('layer').focus()")
        self.browser.press("ArrowDown")
        self.assertEqual(self.browser.text("#which"), "layer 1, head 0 entropy 0.51 nats")  # 10 of 11 whole rows at H(3/4, 1/4)
        place = self.cell(5, 7)
        self.assertEqual(self.browser.screenshot()(*place), (0, 163, 163))
        self.assertIn("not a weight", self.hover(5, 7))

    def test_labels_stay_text(self):
        self.open("heads.html")
        self.assertEqual(self.browser.text("h1"), "Six heads <b>of</b> twelve tokens")
        self.assertTrue(self.hover(5, 6).startswith("</script><script>window.hacked = 1</script> (query 5) → <img src=x"))
        self.click(*self.cell(5, 6))
        self.assertIn("<img src=x onerror=", self.browser.text("#text"))
        self.assertIsNone(self.browser.run("return window.hacked"))
        self.assertEqual(self.browser.run("return document.images.length"), 0)
        self.assertEqual(self.browser.run("return performance.getEntriesByType('resource').length"), 0)

    def test_a_clicked_token_shows_both_directions(self):
        self.open("heads.html")
        self.browser.click("#heads button:nth-child(2)")  # looks at the token before
        x, y = self.cell(3, 0)
        self.click(x - 60, y)  # the row's label
        self.assertEqual(self.browser.text("#to-title"), "to looks at")
        self.assertEqual(self.browser.text("#to").split(), ["beginning", "2", "1.0000"])
        self.assertEqual(self.browser.text("#by-title"), "to is looked at by")
        self.assertEqual(self.browser.text("#by").split(), ["get", "4", "1.0000"])
        x, y = self.cell(0, 8)
        self.click(x, y - 60)  # a column's label
        self.assertEqual(self.browser.text("#to-title"), "sitting looks at")
        self.browser.click("#text span:nth-child(3)")
        self.assertEqual(self.browser.text("#to-title"), "beginning looks at")
        self.browser.click("#to button")
        self.assertEqual(self.browser.text("#pair"), "beginning (query 2) → was (key 1): 1.0000")
        self.assertNotEqual(self.browser.run("return getComputedStyle(document.querySelectorAll('#text span')[1]).backgroundColor"), "rgba(0, 0, 0, 0)")

    def test_the_keyboard_reaches_everything(self):
        self.open("heads.html")
        for _ in range(12):
            self.browser.press("Tab")
            if self.browser.run("return document.activeElement.id") == "map":
                break
        self.assertEqual(self.browser.run("return document.activeElement.id"), "map")
        self.assertEqual(self.browser.run("const s = getComputedStyle(document.activeElement); return s.outlineStyle + s.outlineWidth"), "solid3px")
        self.browser.press("ArrowDown")
        self.assertEqual(self.browser.text("#pair"), "Alice (query 0) → Alice (key 0): 1.0000")
        self.browser.press("ArrowDown", "ArrowDown", "ArrowRight")
        self.assertEqual(self.browser.text("#pair"), "beginning (query 2) → was (key 1): under 1.5e-5")
        self.browser.press("End", "PageDown", "ArrowDown", "ArrowRight")  # the corner holds
        self.assertEqual(self.browser.text("#pair"), "line↵end (query 11) → line↵end (key 11): 0.7500")
        self.browser.press("Home", "Enter")
        self.assertEqual(self.browser.text("#to-title"), "line↵end looks at")
        self.browser.press("+", "+", "+")
        self.assertAlmostEqual(self.browser.run("return view.h"), N * 0.8 ** 3)
        self.assertAlmostEqual(self.browser.run("return view.w"), N * 0.8 ** 3)
        self.browser.press("0")
        self.assertEqual(self.browser.run("return [view.h, view.w]"), [N, N])
        self.browser.press("n")  # the next head, at the same cell
        self.assertIn("layer 0, head 1", self.browser.text("#which"))
        self.assertEqual(self.browser.text("#pair"), "line↵end (query 11) → Alice (key 0): 0")
        self.assertEqual(self.browser.text("#to").split(), ["hér", "10", "1.0000"])
        self.browser.press("n", "n", "p", "p", "p", "p")  # into the next layer and back; the first one holds
        self.assertIn("layer 0, head 0", self.browser.text("#which"))
        self.browser.press("Escape")
        self.assertEqual(self.browser.text("#pair"), "Point at a cell to read its pair.")
        self.assertEqual(self.browser.text("#lists"), "")

    def test_assistive_technology_is_told(self):
        self.open("heads.html")
        self.assertEqual(self.browser.role("#map"), "application")
        self.assertIn("layer 0, head 0: 12 rows by 12 columns of weights", self.browser.label("#map"))
        self.hover(8, 8)
        status = self.accessible("status")
        self.assertEqual(len(status), 1)
        nodes = {node["nodeId"]: node for node in self.browser.devtools("Accessibility.getFullAXTree")["nodes"]}

        def words(node):
            if node.get("role", {}).get("value") == "StaticText":
                return node["name"]["value"]
            return "".join(words(nodes[child]) for child in node["childIds"])

        self.assertEqual(words(nodes[status[0]["nodeId"]]), "sitting (query 8) → sitting (key 8): 0.7500")
        unnamed = [node for role in ("button", "combobox", "radio") for node in self.accessible(role) if not node["name"]["value"]]
        self.assertEqual(unnamed, [])

    def test_heads_and_layers_are_picked(self):
        self.open("heads.html")
        self.assertEqual(self.browser.run("return document.querySelectorAll('#heads button').length"), 3)
        pressed = "return [...document.querySelectorAll('#heads button')].map(b => b.getAttribute('aria-pressed')).join()"
        self.assertEqual(self.browser.run(pressed), "true,false,false")
        self.browser.click("#heads button:nth-child(3)")
        self.assertEqual(self.browser.run(pressed), "false,false,true")
        self.assertEqual(self.hover(3, 1), "to (query 3) → was (key 1): 0.2500")
        self.assertIn("head 1 entropy 0.00 nats", self.browser.text("#heads").replace("\n", " "))  # one weight a row
        self.browser.run("document.getElementById('layer').focus()")
        self.browser.press("ArrowDown")
        self.assertIn("layer 1, head 2", self.browser.text("#which"))

    def test_the_grid_shows_every_head_and_takes_the_arrow_keys(self):
        self.open("heads.html")
        names = self.browser.run("return [...document.querySelectorAll('#grid button')].map(b => b.getAttribute('aria-label'))")
        self.assertEqual(len(names), 6)
        self.assertEqual(names[1], "layer 0, head 1: entropy 0.00 nats")
        mean = sum(math.log(i + 1) for i in range(N)) / N  # of a head that looks at all so far
        self.assertEqual(names[2], f"layer 0, head 2: entropy {mean:.2f} nats")
        self.assertEqual(self.browser.text("#entropy-max"), f"{mean:.2f} nats")
        self.browser.click("#grid button:nth-of-type(3)")
        self.assertIn("layer 0, head 2", self.browser.text("#which"))
        self.assertEqual(self.hover(3, 1), "to (query 3) → was (key 1): 0.2500")
        self.assertFalse(self.browser.run("return document.getElementById('lens').checkVisibility()"))  # these cells need none
        self.browser.run("document.querySelector('#grid [aria-pressed=true]').focus()")
        self.browser.press("ArrowRight", "ArrowUp")
        self.assertIn("layer 1, head 1", self.browser.text("#which"))
        self.assertEqual(self.browser.run("return document.activeElement.getAttribute('aria-label')"), "layer 1, head 1: entropy 0.00 nats")
        self.browser.press("ArrowUp", "ArrowUp", "ArrowRight")  # the corner holds
        self.assertIn("layer 1, head 0", self.browser.text("#which"))
        self.assertEqual(self.browser.run("return [...document.querySelectorAll('#grid button')].filter(b => b.tabIndex === 0).length"), 1)
        self.browser.run("document.activeElement.blur()")
        self.browser.mouse(("move", 1, 1))
        tiles = self.browser.run("return [...document.querySelectorAll('#grid button')].slice(0, 3).map(b => b.getBoundingClientRect())"
                                 ".map(f => [f.x + f.width / 2, f.y + f.height / 2])")
        picture = self.browser.screenshot()
        some, least, most = (luminance(picture(*tile)) for tile in tiles)
        self.assertLess(most + 30, some)
        self.assertLess(some + 10, least)

    def test_tokens_of_the_text_are_reached_by_keys(self):
        self.open("heads.html")
        self.browser.click("#heads button:nth-child(2)")  # looks at the token before
        self.browser.run("document.getElementById('text').focus()")
        self.browser.press("End", "ArrowLeft", "ArrowLeft")
        self.assertEqual(self.browser.text("#to-title"), "by looks at")
        self.assertEqual(self.browser.text("#pair"), "by (query 9) → sitting (key 8): 1.0000")
        self.browser.press("Home", "ArrowLeft", "ArrowRight")
        self.assertEqual(self.browser.text("#pair"), "was (query 1) → Alice (key 0): 1.0000")
        self.browser.press("Escape")
        self.assertEqual(self.browser.text("#lists"), "")

    def test_odd_labels_can_be_told_apart(self):
        self.open("odd.html")
        shown = ["\ufffd", "\ufffd\ufffd", "<U+202E>abc", "↵", "⇥", "∅", "··", "<U+001B>[2J", "\"'&amp;\\", "🐇"]
        for i, text in enumerate(shown):
            self.assertEqual(self.hover(i, i, 10, 10), f"{text} (query {i}) → {text} (key {i}): 1.0000")

    def test_narrow_and_wide_windows(self):
        self.addCleanup(self.browser.devtools, "Emulation.clearDeviceMetricsOverride")
        for width in (320, 600, 1000, 2200):
            self.browser.devtools("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
            for page, n in (("heads.html", N), ("model.html", 2000)):
                self.open(page)
                self.assertLessEqual(self.browser.run("return document.documentElement.scrollWidth"), width, page)  # nothing sticks out
                self.assertGreater(self.browser.run("return box.w"), 0.4 * min(width, 900), page)
                # Labels do not overlap: at least a line's height between them, on both axes.
                gaps = self.browser.run("const gaps = [];"
                                        "for (const [labels, length] of [[rows, box.h], [cols, box.w]]) {"
                                        "  let last = -100; drawAxis(labels, 0, labels.length, length, [5, 6, 9], (text, at) => { gaps.push(at - last); last = at; });"
                                        "} return Math.min(...gaps)")
                self.assertGreaterEqual(gaps, 12, (page, width))
        self.browser.devtools("Emulation.setDeviceMetricsOverride", width=320, height=900, deviceScaleFactor=1, mobile=False)
        self.open("heads.html")
        self.assertEqual(self.hover(8, 8), "sitting (query 8) → sitting (key 8): 0.7500")

    def test_a_model_at_two_thousand_tokens(self):
        self.open("model.html")
        self.assertEqual(self.browser.run("return document.querySelectorAll('#grid button').length"), 12)
        self.assertIn("each row keeps its 16 largest weights", self.browser.text("#reduced"))
        self.assertIn("block of 32 × 32", self.browser.text("#reduced"))
        self.browser.click("#grid button[aria-label^='layer 2, head 3']")
        self.browser.run("document.getElementById('map').focus(); point(1500, 1488)")  # (2 + 1) (3 + 1) = 12 back
        self.browser.press("Enter")
        self.assertEqual(self.browser.text("#pair"), "·w1500 (token 1500) → ·w1488 (token 1488): 0.5002")
        self.assertEqual(self.browser.text("#to").split()[:6], ["·w1488", "1488", "0.5002", "·w0", "0", "0.2502"])
        self.assertEqual(self.browser.text("#by").split()[:3], ["·w1512", "1512", "0.5002"])
        self.assertTrue(self.browser.run("const f = spans[1500].getBoundingClientRect(), box = get('text').getBoundingClientRect();"
                                         "return f.top >= box.top && f.bottom <= box.bottom"))  # the text went there
        self.browser.press("ArrowLeft")
        self.assertRegex(self.browser.text("#pair"), r"→ ·w1487 \(token 1487\): at most 0\.000\d$")
        # The mouse finds the strongest cell of those that share a pixel or lie beside it.
        for r in (700, 900, 1100, 1300):
            row, column, weight = re.search(r"\(token (\d+)\) → ·w\d+ \(token (\d+)\): (\S+)$", self.hover(r, r - 10, 2000, 2000)).groups()
            self.assertEqual((int(row) - int(column), weight[:5]), (12, "0.500"), r)
        # The lens shows single cells: the current one in the middle, its diagonal, and less beside it.
        self.browser.run("document.getElementById('lens').scrollIntoView({block: 'nearest'})")
        middle = self.browser.run("const f = document.getElementById('lens').getBoundingClientRect();"
                                  "return [f.x + lensBox.x + lensBox.w / 2, f.y + lensBox.y + lensBox.h / 2]")
        picture = self.browser.screenshot()
        light = lambda right, down: luminance(picture(middle[0] + 17 * right + 4, middle[1] + 17 * down + 4))
        self.assertLess(max(light(0, 0), light(4, 4), light(-4, -4)) + 60, min(light(2, 0), light(0, 2), light(-3, 3)))
        # What is left out is drawn: the ground between the lines is not that of 0.
        self.browser.press("Escape")
        place = self.cell(60, 30, 2000, 2000)
        self.browser.mouse(("move", 1, 1))
        picture = self.browser.screenshot()
        self.assertLess(luminance(picture(*place)), 252)
        self.assertEqual(picture(*self.cell(60, 1500, 2000, 2000)), (241, 239, 243))
        self.assertLess(os.path.getsize(os.path.join(self.folder.name, "model.html")), 12 * 150_000)

    def test_two_thousand_tokens(self):
        self.open("long.html")
        self.browser.run("document.getElementById('map').focus(); point(1500, 750)")
        self.browser.press("ArrowLeft", "ArrowRight")
        self.assertEqual(self.browser.text("#pair"), "token1500 (query 1500) → token750 (key 750): 0.6001")
        self.browser.press("ArrowRight")
        self.assertEqual(self.browser.text("#pair"), "token1500 (query 1500) → token751 (key 751): 0.0001")
        # Pooled to pixels, the diagonal is still whole: no pixel of it has lost its largest weight.
        self.browser.press("Escape")
        places = [self.cell(i, i, 2000, 2000) for i in range(100, 2000, 50)]
        picture = self.browser.screenshot()
        for x, y in places:
            if y < picture.height - 2:
                self.assertLess(min(luminance(picture(x + dx, y + dy)) for dx in (-1, 0, 1) for dy in (-1, 0, 1)), 170)
        # Zoomed in, the mouse finds single cells.
        self.browser.run("point(1500, 750)")
        for _ in range(12):
            self.browser.click("#in")
        self.browser.run("cell = null")
        x, y = self.browser.run("const f = document.getElementById('map').getBoundingClientRect();"
                                "return [f.x + box.x + (750.5 - view.c) * box.w / view.w, f.y + box.y + (1500.5 - view.r) * box.h / view.h]")
        self.browser.mouse(("move", x, y))
        self.assertIn("token1500 (query 1500) → token750 (key 750): 0.6001", self.browser.text("#pair"))
        before = self.browser.run("return view.r")
        self.browser.mouse(("move", x, y), "down", ("move", x, y - 40), ("move", x, y - 80), "up")
        self.assertGreater(self.browser.run("return view.r"), before)

    def test_shortened_rows_say_what_they_know(self):
        self.open("kept.html")
        self.browser.run("point(1500, 750)")
        self.assertIn(": 0.6001", self.browser.text("#pair"))
        self.browser.run("point(1500, 1400)")
        self.assertIn(": at most 0.0001", self.browser.text("#pair"))
        self.assertLess(os.path.getsize(os.path.join(self.folder.name, "kept.html")), 400_000)

    def test_three_queries_over_a_cache(self):
        self.open("cache.html")
        self.assertEqual(self.hover(1, 20, 3, 40), "b (query 1) → ·k20 (key 20): 0.0250")  # the token is " k20"
        self.click(*self.cell(1, 20, 3, 40))
        self.assertEqual(self.browser.text("#to-title"), "b looks at")
        self.assertEqual(self.browser.text("#by-title"), "·k20 is looked at by")
        self.assertEqual(self.browser.text("#masked"), "")  # nothing is

    def test_an_empty_page_is_quiet(self):
        self.open("empty.html")

    def test_dark_ground(self):
        self.browser.devtools("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
        self.addCleanup(self.browser.devtools, "Emulation.setEmulatedMedia", features=[])
        self.open("heads.html")
        self.browser.mouse(("move", 1, 1))
        places = [self.cell(*at) for at in ((8, 8), (8, 0), (8, 3))]
        picture = self.browser.screenshot()
        strong, weak, none = (luminance(picture(*place)) for place in places)
        self.assertGreater(strong, weak + 30)
        self.assertGreater(weak, none + 30)
        self.assertLess(luminance(picture(2, 2)), 40)


if __name__ == "__main__":
    if find_browser() is None:
        print("SKIP: the heat map in a browser: chromium and chromedriver are not both installed (Debian: chromium, chromium-driver)")
        sys.exit(0)
    MAKE_PAGES = os.path.abspath(sys.argv.pop(1))
    unittest.main()
