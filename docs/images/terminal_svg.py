#!/usr/bin/env python3
"""Draws what a program printed in colour as an SVG for light and dark ground: standard input to standard output.

COLORTERM=truecolor COLUMNS=100 build/demo/examples/01_who_attends_to_whom --colour always | docs/images/terminal_svg.py > docs/images/demo.svg"""
import re
import sys
from html import escape

WIDTH, HEIGHT, LEFT, TOP = 8.4, 19, 18, 14  # of a character; of the margin


def ground_of(codes, ground):
    """The background after one SGR sequence: 48;2;R;G;B sets it, 0 clears it."""
    if codes[:2] == [48, 2]:
        return "#%02x%02x%02x" % tuple(codes[2:5])
    return None if codes == [0] else ground


def main():
    lines = sys.stdin.read().strip("\n").split("\n")
    shapes, longest, ground, style = [], 0, None, ""
    for row, line in enumerate(lines):
        column, y = 0, TOP + row * HEIGHT
        for part in re.split(r"(\033\[[0-9;]*m)", line):
            sequence = re.fullmatch(r"\033\[([0-9;]*)m", part)
            if sequence:
                codes = [int(code or 0) for code in sequence[1].split(";")]
                ground = ground_of(codes, ground)
                style = "" if codes == [0] else ' class="cell"' if 97 in codes else ' class="bold"' if codes == [1] else style
                continue
            if ground:
                shapes.append(f'<rect x="{LEFT + column * WIDTH:.1f}" y="{y}" width="{len(part) * WIDTH:.1f}" height="{HEIGHT}" fill="{ground}"/>')
            text = part.strip()
            if text:
                x = LEFT + (column + len(part) - len(part.lstrip())) * WIDTH
                shapes.append(f'<text x="{x:.1f}" y="{y + 14}"{style} textLength="{len(text) * WIDTH:.1f}" xml:space="preserve">{escape(text)}</text>')
            column += len(part)
        longest = max(longest, column)
    width, height = round(2 * LEFT + longest * WIDTH), 2 * TOP + len(lines) * HEIGHT
    print(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img">')
    print("<title>The demo in a terminal</title>")
    print('<style>text{font:14px "DejaVu Sans Mono",Menlo,Consolas,monospace;fill:#24212b}.ground{fill:#fbfaf7;stroke:#dedbe3}'
          ".bold{font-weight:700}@media(prefers-color-scheme:dark){text{fill:#dcd9e3}.ground{fill:#17161d;stroke:#35323f}}"
          "text.cell{fill:#fff;font-weight:700}</style>")
    print(f'<rect class="ground" x=".5" y=".5" width="{width - 1}" height="{height - 1}" rx="9"/>')
    print("\n".join(shapes))
    print("</svg>")


if __name__ == "__main__":
    main()
