"""Looks at heat map pages in a headless Chromium: real mouse and key events in, pixels and the accessibility tree out.

usage: test_pages.py MAKE_PAGES      (the program that writes the pages)"""
import os
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
        self.assertEqual(self.hover(2, 9), "beginning (query 2) → by (key 9): under 1.5e-5")
        self.assertEqual(self.hover(11, 10), "line␊end (query 11) → hér (key 10): under 1.5e-5")

    def test_pixels_darken_with_the_weight_and_mark_what_is_none(self):
        self.open("heads.html")
        self.browser.mouse(("move", 1, 1))
        places = {name: self.cell(*at) for name, at in {"strong": (8, 8), "weak": (8, 0), "none": (2, 9)}.items()}
        picture = self.browser.screenshot()
        strong, weak, none = (luminance(picture(*places[name])) for name in ("strong", "weak", "none"))
        self.assertLess(strong + 30, weak)
        self.assertLess(weak + 30, none)
        self.assertGreater(none, 250)
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
        self.assertEqual(self.browser.text("#to").split(), ["beginning", "1.0000"])
        self.assertEqual(self.browser.text("#by-title"), "to is looked at by")
        self.assertEqual(self.browser.text("#by").split(), ["get", "1.0000"])
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
        self.browser.press("ArrowDown")
        self.assertEqual(self.browser.text("#pair"), "Alice (query 0) → Alice (key 0): 1.0000")
        self.browser.press("ArrowDown", "ArrowDown", "ArrowRight")
        self.assertEqual(self.browser.text("#pair"), "beginning (query 2) → was (key 1): under 1.5e-5")
        self.browser.press("End", "PageDown", "ArrowDown", "ArrowRight")  # the corner holds
        self.assertEqual(self.browser.text("#pair"), "line␊end (query 11) → line␊end (key 11): 0.7500")
        self.browser.press("Home", "Enter")
        self.assertEqual(self.browser.text("#to-title"), "line␊end looks at")
        self.browser.press("+", "+", "+")
        self.assertAlmostEqual(self.browser.run("return view.h"), N * 0.8 ** 3)
        self.assertAlmostEqual(self.browser.run("return view.w"), N * 0.8 ** 3)
        self.browser.press("0")
        self.assertEqual(self.browser.run("return [view.h, view.w]"), [N, N])
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
        texts = [node["name"]["value"] for node in self.accessible("StaticText")]
        self.assertIn("0.7500", texts)
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

    def test_two_thousand_tokens(self):
        self.open("long.html")
        self.assertLess(self.browser.run("const t = performance.now(); drawSheet(); return performance.now() - t"), 1000)
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
        self.assertEqual(self.hover(1, 20, 3, 40), "b (query 1) →  k20 (key 20): 0.0250")  # the token is " k20"
        self.click(*self.cell(1, 20, 3, 40))
        self.assertEqual(self.browser.text("#to-title"), "b looks at")
        self.assertEqual(self.browser.text("#by-title").strip(), "k20 is looked at by")

    def test_an_empty_page_is_quiet(self):
        self.open("empty.html")

    def test_dark_ground(self):
        self.browser.devtools("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
        self.addCleanup(self.browser.devtools, "Emulation.setEmulatedMedia", features=[])
        self.open("heads.html")
        self.browser.mouse(("move", 1, 1))
        places = [self.cell(*at) for at in ((8, 8), (8, 0), (2, 9))]
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
