"""Looks at the page of a real model in a headless Chromium, and compares the weights that it shows with known ones.

usage: test_smollm2_page.py MAKE_PAGE KNOWN      (the program that writes pages; tests/smollm2/data/attn_layer0.json)"""
import json
import math
import os
import subprocess
import sys
import tempfile
import unittest

from webdriver import Browser, find_browser

LAYERS, HEADS = 30, 9
ODD = "<script>window.hacked = 1</script> \"\U0001f407\" \u202eabc\x01\n\t&amp;"


class Page(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.browser = Browser(*find_browser())
        cls.addClassCleanup(cls.browser.close)
        cls.n, cls.weights = KNOWN["attn_weights"]["shape"][1], KNOWN["attn_weights"]["data"]

    def open(self, name):
        self.browser.open(os.path.join(FOLDER, name))
        self.assertEqual(self.browser.errors(), [])

    def hover(self, r, c):
        x, y = self.browser.run("const map = document.getElementById('map'); map.scrollIntoView({block: 'nearest'});"
                                "const f = map.getBoundingClientRect(); return [f.x + box.x + (arguments[1] + 0.5) * box.w / C,"
                                "f.y + box.y + (arguments[0] + 0.5) * box.h / R]", r, c)
        self.browser.mouse(("move", x, y))
        return self.browser.text("#pair")

    def test_the_weights_of_the_first_layer(self):
        self.open("known.html")
        self.assertEqual(self.browser.text("#text"), KNOWN["text"])
        tiles = self.browser.run("return [...document.querySelectorAll('#grid button')].map(b => b.getAttribute('aria-label'))")
        self.assertEqual(len(tiles), LAYERS * HEADS)
        for h in range(HEADS):
            self.browser.click(f"#heads button:nth-child({h + 1})")
            rows = [self.weights[(h * self.n + i) * self.n:][:self.n] for i in range(self.n)]
            entropy = sum(-w * math.log(w) for row in rows for w in row if w > 0) / self.n
            self.assertEqual(tiles[h], f"layer 0, head {h}: entropy {entropy:.2f} nats")
            for r, c in ((11, 0), (11, 11), (7, 2 + h // 2)):
                told, want = float(self.hover(r, c).rsplit(": ", 1)[1]), rows[r][c]
                # The model's own error, as in test_smollm2_model.cpp; the page's resolution; and half of the last digit shown.
                self.assertLess(abs(told - want), 2e-5 * (1 + want) + 1 / 131068 + 5e-5, (h, r, c))
            self.assertTrue(self.hover(3, 8).endswith(": 0"))  # nobody looks ahead

    def test_every_head_of_every_layer_has_rows_that_sum_to_one(self):
        self.open("known.html")
        sums = self.browser.run("return data.maps.map(m => rows.map((_, r) => cols.reduce((sum, _, c) => sum + codeAt(m, r, c) * m.max / full, 0)))")
        self.assertEqual((len(sums), len(sums[0])), (LAYERS * HEADS, self.n))
        for head in sums:
            for r, total in enumerate(head):
                self.assertLess(abs(total - 1), (r + 1) / 131068 + 1e-5)  # a row of r + 1 weights


    def test_tokens_that_attack_or_are_parts_of_characters(self):
        self.open("odd.html")
        bytewise = ODD  # these characters have no token of their own
        for character in "\U0001f407\u202e":
            bytewise = bytewise.replace(character, "".join(f"\\x{byte:02X}" for byte in character.encode()))
        self.assertEqual(self.browser.run("return get('text').textContent"), bytewise)
        self.assertIsNone(self.browser.run("return window.hacked"))
        shown = self.browser.run("return rows.map(show)")
        for label in ("·\"", "\\xF0", "<U+0001>", "↵"):
            self.assertTrue(any(label in token for token in shown), (label, shown))
        n = len(shown)
        self.assertEqual(self.hover(n - 1, 0).split(" → ")[0], f"{shown[-1]} (token {n - 1})")


if __name__ == "__main__":
    if find_browser() is None:
        print("SKIP: SmolLM2's page in a browser: chromium and chromedriver are not both installed (Debian: chromium, chromium-driver)")
        sys.exit(0)
    with open(sys.argv.pop(2)) as file:
        KNOWN = json.load(file)
    MAKE_PAGE = sys.argv.pop(1)
    with tempfile.TemporaryDirectory() as FOLDER:
        pages = [os.path.join(FOLDER, "known.html"), KNOWN["text"], os.path.join(FOLDER, "odd.html"), ODD]
        answer = subprocess.run([MAKE_PAGE, *pages], check=True, stdout=subprocess.PIPE, text=True).stdout
        if answer.startswith("SKIP: "):
            print(answer, end="")
            sys.exit(0)
        unittest.main()
