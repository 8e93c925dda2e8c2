#!/usr/bin/env python3
"""Takes the pictures of heat map pages that README.md and docs/examples.md show, in a headless Chromium:

  page_png.py PAGE PICTURE WIDTH HEIGHT light|dark SCRIPT

heatmap.png          ./run demo                        1280 1000 light "chooseToken(cols.indexOf('picking')); zoom(50 / R); get('text').scrollTop = 0"
smollm2_heads.png    the ./run chat of docs/examples.md 1280 1330 light "pick(data.maps[18 * 9 + 6]); chooseToken(61)"
smollm2_long.png     ./run chat with 2,048 tokens      1280 1330 dark  "pick(data.maps[5 * 9 + 6]); chooseToken(1203)"
training.png         ./run train                        800  822 light "pick(data.maps[8])"

(those tokens: the first 6,960 bytes of examples/data/passage.txt, an empty line and the README.md of commit 4e59147, with --temperature 0 --tokens 1)

and then through pngquant --quality 80-100, which makes them three times smaller."""
import os
import pathlib
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests/heatmap_browser"))
from webdriver import Browser, find_browser  # noqa: E402

if len(sys.argv) != 7:
    sys.exit(__doc__)
page, picture, width, height, ground, script = sys.argv[1:]
browser = Browser(*find_browser())
try:
    browser.devtools("Emulation.setDeviceMetricsOverride", width=int(width), height=int(height), deviceScaleFactor=1, mobile=False)
    browser.devtools("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": ground}])
    browser.open(os.path.abspath(page))
    browser.run(script)
    browser.screenshot(picture)
finally:
    browser.close()
