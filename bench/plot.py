#!/usr/bin/env python3
"""Draws time and extra memory over n, both axes logarithmic, from heed_bench's JSON as an SVG for light and dark ground.

Each line carries its name and the power of n that its upper half grows with. The pictures of docs/images:

build/demo/examples/03_what_n2_costs --json scaling.json
bench/plot.py scaling.json --filter '^(naive|fused)/n' --title 'Attention as it is written, and fused' > docs/images/scaling.svg
./run bench '--benchmark_filter=^(linear/f32/gate:token|linear_softmax)/' --benchmark_out=linear.json
bench/plot.py linear.json --filter . --cross --name linear_softmax/f32/d:64=softmax --name 'linear/f32/gate:token/d:64=gated linear' \\
  --title 'Causal attention: softmax against a state' > docs/images/linear.svg
build/demo/examples/04_kv_cache --json cache.json
bench/plot.py cache.json --filter . --title 'One more token, with a cache of keys and values and without' --x-label 'tokens before' \\
  > docs/images/kv_cache.svg"""
import argparse
import json
import math
import re
import sys
from html import escape

SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
# Colours that people who see red and green alike can tell apart, for light and dark ground; shapes say the same once more.
COLOURS = [("#c2410c", "#fb923c"), ("#1d4ed8", "#7aa7ff"), ("#0f766e", "#2dd4bf"), ("#7e22ce", "#c792ff"), ("#57534e", "#b8b2ab"), ("#a16207", "#e8c547")]
MARKS = ["circle", "square", "diamond", "triangle"]
DEFAULT_NAMES = {"naive/f32/d:64": "naive", "streaming/f32/d:64": "tiled, plain Eigen", "forward/f32/d:64/causal:0/threads:1": "fused",
                 "forward/f32/d:64/causal:1/threads:1": "fused, causal"}
WIDTH, LEFT, RIGHT, TOP, PANEL, GAP, LINE = 760, 82, 172, 66, 270, 64, 17


def fail(message):
    sys.exit("plot.py: " + message)


def read_series(path, pattern):
    """{name without n: {n: (seconds, extra bytes or None)}}; of repetitions the fastest."""
    try:
        with open(path, encoding="utf-8") as file:
            runs = json.load(file)["benchmarks"]
        series = {}
        for run in runs:
            size = re.search(r"/n:(\d+)", run["name"])
            if run.get("run_type") == "aggregate" or "real_time" not in run or not size or not pattern.search(run["name"]):
                continue
            name = run["name"].replace(size[0], "", 1)
            point = (float(run["real_time"]) * SECONDS[run["time_unit"]], run.get("extra_bytes"))
            if not (point[0] > 0 and int(size[1]) > 0):
                raise ValueError(f"{run['name']} has no time")
            points = series.setdefault(name, {})
            points[int(size[1])] = min(point, points.get(int(size[1]), point), key=lambda p: p[0])
    except OSError as error:
        fail(f"cannot read {path}: {error.strerror}")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        fail(f"{path} is not what heed_bench --benchmark_out writes: {type(error).__name__}: {error}")
    if not series:
        fail(f"{path} holds no benchmark with an n that matches '{pattern.pattern}'")
    return series


def time_text(seconds):
    for unit, scale in (("s", 1), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= scale * 0.9999:
            return f"{seconds / scale:g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


def bytes_text(count):
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= scale:
            return f"{count / scale:g} {unit}"
    return f"{count:g} B"


def mark(kind, x, y, style):
    if kind == "circle":
        return f'<circle class="{style}" cx="{x:.1f}" cy="{y:.1f}" r="4"/>'
    corners = {"square": [(-3.6, -3.6), (3.6, -3.6), (3.6, 3.6), (-3.6, 3.6)], "diamond": [(0, -5), (5, 0), (0, 5), (-5, 0)],
               "triangle": [(0, -5), (4.6, 3.6), (-4.6, 3.6)]}[kind]
    return f'<polygon class="{style}" points="{" ".join(f"{x + dx:.1f},{y + dy:.1f}" for dx, dy in corners)}"/>'


class Axis:
    """A logarithmic axis: values to pixels, with a line at each power of the base that fits."""

    def __init__(self, values, base, start, end):
        self.base, self.start, self.end = base, start, end
        low, high = math.log(min(values), base), math.log(max(values), base)
        self.low, self.high = math.floor(low + 1e-9), math.ceil(high - 1e-9)
        if self.low == self.high:
            self.high += 1

    def at(self, value):
        return self.start + (self.end - self.start) * (math.log(value, self.base) - self.low) / (self.high - self.low)

    def ticks(self):
        step = max(1, math.ceil((self.high - self.low) / 9))
        return [self.base**e for e in range(self.low, self.high + 1, step)]


def growth(points):
    """The power of n that the upper half of the line grows with: a straight line through the logarithms."""
    upper = points[len(points) // 2:] if len(points) > 3 else points
    if len(upper) < 2:
        return ""
    x, y = [math.log(n) for n, _ in upper], [math.log(value) for _, value in upper]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    power = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y)) / sum((a - mean_x) ** 2 for a in x)
    return f"\u221d n^{power:.1f}" if abs(power) >= 0.05 else "constant"


def crossing(one, other):
    """The n from which on `one` is below `other` for good, on straight lines between the logarithms; None where they do not cross."""
    one, other = dict(one), dict(other)
    both = sorted(one.keys() & other.keys())
    gaps = [math.log(one[n] / other[n]) for n in both]
    for i in range(len(both) - 1, 0, -1):
        if gaps[i] >= 0:
            return None
        if gaps[i - 1] >= 0:
            share = gaps[i - 1] / (gaps[i - 1] - gaps[i])
            return both[i - 1] * (both[i] / both[i - 1]) ** share
    return None


def panel(title, lines, names, x_axis, top, base, text, x_label, crossed):
    """One diagram: title, grid, axis labels, and a line with marks and its name for each series; lines is
    [(style index, [(n, value)])]."""
    bottom, right = top + PANEL, WIDTH - RIGHT
    y_axis = Axis([value for _, points in lines for _, value in points], base, bottom, top)
    shapes = [f'<text class="title" x="{LEFT}" y="{top - 14}">{escape(title)}</text>']
    for tick in y_axis.ticks():
        y = y_axis.at(tick)
        shapes.append(f'<path class="grid" d="M{LEFT} {y:.1f}H{right}"/>')
        shapes.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{escape(text(tick))}</text>')
    for tick in x_axis.ticks():
        x = x_axis.at(tick)
        shapes.append(f'<path class="grid" d="M{x:.1f} {top}V{bottom}"/>')
        shapes.append(f'<text x="{x:.1f}" y="{bottom + 20}" text-anchor="middle">{tick:,}</text>')
    if x_label:
        shapes.append(f'<text x="{(LEFT + right) / 2}" y="{bottom + 38}" text-anchor="middle">{escape(x_label)}</text>')
    if crossed:
        winner, n = crossed
        x = x_axis.at(n)
        shapes.append(f'<path class="cross" d="M{x:.1f} {top}V{bottom}"/>')
        shapes.append(f'<text class="title" x="{x + 6:.1f}" y="{bottom - 10}">{escape(names[winner])} is faster from n = {n:.0f} on</text>')
    ends = []
    for style, points in lines:
        path = "L".join(f"{x_axis.at(n):.1f} {y_axis.at(value):.1f}" for n, value in points)
        shapes.append(f'<path class="line c{style}" d="M{path}"/>')
        shapes += [mark(MARKS[style % len(MARKS)], x_axis.at(n), y_axis.at(value), f"c{style}") for n, value in points]
        ends.append([y_axis.at(points[-1][1]), x_axis.at(points[-1][0]), style, growth(points)])
    lowest = -math.inf  # names at the edge are moved apart, downwards; a line that ends before it has its name above, where it came from
    for y, x, style, power in sorted(ends):
        at_edge = x > right - 1
        lowest = max(y + 4, lowest + LINE) if at_edge else lowest
        place = f'x="{x + 10:.1f}" y="{lowest:.1f}"' if at_edge else f'x="{x - 8:.1f}" y="{y - 4:.1f}" text-anchor="end"'
        shapes.append(f'<text {place}><tspan class="name c{style}">{escape(names[style])}</tspan> {power}</text>')
    return shapes


def draw(series, title, x_label, cross):
    names = list(series)
    sizes = [n for points in series.values() for n in points]
    x_axis = Axis(sizes, 2, LEFT, WIDTH - RIGHT)
    times, memory = [], []
    for style, points in enumerate(series.values()):
        ordered = sorted(points.items())
        times.append((style, [(n, seconds) for n, (seconds, _) in ordered]))
        known = [(n, extra) for n, (_, extra) in ordered if extra]
        if known:
            memory.append((style, known))
    crossed = None
    if cross:
        if len(times) != 2:
            fail(f"--cross needs two lines, but there are {len(times)}")
        meetings = [(winner, crossing(times[winner][1], times[1 - winner][1])) for winner in (0, 1)]
        crossed = next(((winner, n) for winner, n in meetings if n), None)

    top = TOP
    shapes = [f'<text class="head" x="{LEFT}" y="26">{escape(title)}</text>']
    shapes += panel("Time of a call", times, names, x_axis, top, 10, time_text, "" if memory else x_label, crossed)
    if memory:
        top += PANEL + GAP
        shapes += panel("Memory of a call besides inputs and output", memory, names, x_axis, top, 4, bytes_text, x_label, None)
    height = top + PANEL + 54

    light = "".join(f".c{i}{{--c:{COLOURS[i][0]}}}" for i in range(len(series)))
    dark = "".join(f".c{i}{{--c:{COLOURS[i][1]}}}" for i in range(len(series)))
    style = (f"text{{font:12px system-ui,'DejaVu Sans',sans-serif;fill:#57535f}}.head{{font-size:16px;font-weight:600;fill:#1c1a22}}"
             f".title{{font-size:13px;font-weight:600;fill:#1c1a22}}.grid{{stroke:#8a8594;stroke-opacity:.28;fill:none}}"
             f".cross{{stroke:#8a8594;stroke-dasharray:4 4;fill:none}}circle,polygon{{fill:var(--c)}}"
             f".name{{font-size:13px;font-weight:600;fill:var(--c)}}"
             f".line{{stroke:var(--c);stroke-width:2;fill:none;stroke-linejoin:round}}{light}"
             f"@media(prefers-color-scheme:dark){{text{{fill:#b5b0c0}}.head,.title{{fill:#f2eff7}}{dark}}}")
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img">\n'
            f"<title>{escape(title)}</title>\n<style>{style}</style>\n" + "\n".join(shapes) + "\n</svg>\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("results", help="the file that heed_bench --benchmark_out=FILE wrote")
    parser.add_argument("--filter", default=r"^(naive|streaming)/f32/d:64/|^forward/f32/d:64/n:\d+/causal:0/threads:1$",
                        help="the benchmarks to draw, a regular expression (default: %(default)s)")
    parser.add_argument("--title", default="Attention over n")
    parser.add_argument("--x-label", default="n, queries and keys")
    parser.add_argument("--name", action="append", default=[], metavar="OLD=NEW", help="what a line is called; may be repeated")
    parser.add_argument("--cross", action="store_true", help="mark the n from which on one of the two lines is below the other")
    arguments = parser.parse_args()
    try:
        pattern = re.compile(arguments.filter)
    except re.error as error:
        fail(f"--filter: {error}")
    series = read_series(arguments.results, pattern)
    if len(series) > len(COLOURS):
        fail(f"{len(series)} lines are more than a reader can tell apart, at most {len(COLOURS)}: narrow --filter")
    names = dict(DEFAULT_NAMES)
    for renaming in arguments.name:
        old, equals, new = renaming.partition("=")
        if not equals or old not in series:
            fail(f"--name {renaming}: no line is called '{old}'; there are " + ", ".join(f"'{name}'" for name in series))
        names[old] = new
    series = {names.get(name, name): points for name, points in series.items()}
    sys.stdout.write(draw(series, arguments.title, arguments.x_label, arguments.cross))


if __name__ == "__main__":
    main()
