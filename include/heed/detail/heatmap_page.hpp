#pragma once

#include <heed/detail/abi.hpp>

// The page that heatmap.hpp fills: style, body and program as text. It reads JSON blocks, #data and the .cells of each map, and reaches
// nothing outside itself; every label enters the document as text, never as markup.

HEED_NAMESPACE_BEGIN
namespace detail {

inline constexpr const char* heatmap_style = R"css(
:root {
  color-scheme: light dark;
  --ground: #fbfaf7; --panel: #ffffff; --ink: #1d1b22; --soft: #67636f; --line: #dedbe3; --accent: #b0155f; --masked: #f1eff3;
}
@media (prefers-color-scheme: dark) {
  :root { --ground: #131218; --panel: #1b1a22; --ink: #eceaf1; --soft: #a5a0b0; --line: #35323f; --accent: #ff8f5a; --masked: #26252e; }
}
* { box-sizing: border-box; }
body { margin: 0; padding: 24px clamp(12px, 3vw, 40px); background: var(--ground); color: var(--ink);
       font: 15px/1.5 system-ui, "Segoe UI", "Helvetica Neue", "DejaVu Sans", sans-serif; }
h1 { margin: 0; font-size: 1.6rem; line-height: 1.2; }
h2 { margin: 0 0 6px; font-size: .95rem; }
h2 small { margin-left: 6px; font-weight: normal; color: var(--soft); }
header p { margin: 6px 0 0; max-width: 75ch; color: var(--soft); }
header, #picker { margin-bottom: 18px; max-width: 1500px; }
main { display: grid; grid-template-columns: minmax(0, 3fr) minmax(260px, 2fr); gap: 20px; align-items: start; max-width: 1500px; }
@media (max-width: 820px) { main { grid-template-columns: minmax(0, 1fr); } }
.panel { background: var(--panel); border: 1px solid var(--line); border-radius: 10px; padding: 14px; }
.panel + .panel { margin-top: 14px; }
canvas { display: block; }
#map { width: 100%; cursor: crosshair; touch-action: pan-y; border-radius: 4px; }
:focus-visible { outline: 3px solid var(--accent); outline-offset: 2px; }
.bar { display: flex; flex-wrap: wrap; gap: 8px; align-items: center; margin-bottom: 10px; }
.bar .space { flex: 1; }
button, select { font: inherit; color: inherit; background: var(--panel); border: 1px solid var(--line); border-radius: 7px; padding: 3px 11px; }
button { cursor: pointer; }
button:hover { border-color: var(--accent); }
#grid { display: grid; gap: 2px; margin-bottom: 14px; font-size: .72rem; line-height: 1; color: var(--soft); }
#grid span { text-align: center; white-space: nowrap; }
#grid .head { padding-right: 6px; text-align: right; align-self: center; }
#grid button { min-width: 0; height: 14px; padding: 0; border: 0; border-radius: 2px; }
#grid button:hover { outline: 2px solid var(--accent); }
#grid button[aria-pressed=true] { outline: 2px solid var(--ink); outline-offset: 1px; }
#grid button:focus-visible { outline: 3px solid var(--accent); outline-offset: 1px; }
#heads { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(108px, 30%), 1fr)); gap: 8px; }
#heads button { padding: 6px; text-align: left; font-size: .8rem; line-height: 1.3; }
#heads button[aria-pressed=true] { border-color: var(--accent); box-shadow: 0 0 0 1px var(--accent); }
#heads canvas { width: 100%; aspect-ratio: 1; margin-bottom: 4px; }
#heads small { display: block; color: var(--soft); }
.legend { display: flex; flex-wrap: wrap; gap: 7px; align-items: center; font-size: .8rem; color: var(--soft); }
.ramp { width: 120px; height: 10px; border-radius: 3px; }
.swatch { display: inline-block; width: 14px; height: 10px; margin: 0 6px 0 10px; border: 1px solid var(--line); background: var(--masked); }
#pair { font-size: 1.15rem; min-height: 3.2em; margin: 0; overflow-wrap: anywhere; }
#lens { max-width: 100%; margin-top: 8px; }
#pair b { font-variant-numeric: tabular-nums; color: var(--accent); font-size: 1.3em; }
bdi { font-weight: 600; white-space: pre-wrap; }
.hint { margin: 8px 0 0; font-size: .8rem; color: var(--soft); }
kbd { border: 1px solid var(--line); border-radius: 4px; padding: 0 4px; font: inherit; }
.lists { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(190px, 100%), 1fr)); gap: 16px; }
ol { list-style: none; margin: 0; padding: 0; font-size: .88rem; }
ol button { position: relative; display: flex; width: 100%; align-items: baseline; gap: 8px; border: 0; padding: 2px 6px; background: none;
            text-align: left; }
ol button small { color: var(--soft); }
ol button i { position: absolute; inset: 2px auto 2px 0; background: var(--accent); opacity: .2; border-radius: 4px; }
ol button bdi { overflow: hidden; text-overflow: ellipsis; white-space: pre; }
ol button span { margin-left: auto; font-variant-numeric: tabular-nums; color: var(--soft); }
.sum { margin: 4px 6px 0; font-size: .8rem; color: var(--soft); }
#text { position: relative; max-height: 24em; overflow: auto; line-height: 1.75; overflow-wrap: anywhere; }
#text span { cursor: pointer; border-radius: 3px; padding: 1px 0; unicode-bidi: isolate; white-space: pre-wrap; }
#text span:hover { outline: 1px solid var(--accent); }
#text span.here { outline: 2px solid var(--accent); }
[hidden] { display: none !important; }
)css";

inline constexpr const char* heatmap_body = R"html(
<header><h1 id="title"></h1><p id="note"></p><p id="reduced"></p></header>
<nav id="picker" class="panel" aria-label="Layers and heads">
  <div id="overview">
    <div class="bar"><h2>Every head <small>by the mean entropy of its rows: how widely it looks</small></h2><span class="space"></span>
      <span class="legend"><span>0</span><canvas id="entropy-ramp" class="ramp" width="120" height="10" aria-hidden="true"></canvas><span
        id="entropy-max"></span></span></div>
    <div id="grid" role="group" aria-label="Every head by its entropy. Arrow keys move between layers and heads."></div>
    <div class="bar"><label>Heads of layer <select id="layer"></select></label></div>
  </div>
  <div id="heads" role="group" aria-label="Heads of this layer"></div>
</nav>
<main>
  <section class="panel" aria-label="Heat map">
    <div class="bar">
      <h2 id="which"></h2><span class="space"></span>
      <button id="out" aria-label="Zoom out">&minus;</button><button id="in" aria-label="Zoom in">+</button><button id="all">Whole map</button>
    </div>
    <div class="bar legend"><span>weight 0</span><canvas id="ramp" class="ramp" width="120" height="10" aria-hidden="true"></canvas><span
      id="max"></span><span id="masked"><i class="swatch"></i>exactly 0, as behind a mask</span></div>
    <canvas id="map" tabindex="0" role="application" aria-roledescription="heat map" aria-describedby="keys"></canvas>
    <p class="hint" id="keys">Arrow keys move from cell to cell, <kbd>Home</kbd> and <kbd>End</kbd> along the row, <kbd>Page Up</kbd> and
      <kbd>Page Down</kbd> ten rows; <kbd>Enter</kbd> chooses the row's token, <kbd>+</kbd> <kbd>&minus;</kbd> <kbd>0</kbd> zoom,
      <span id="head-keys"><kbd>n</kbd> and <kbd>p</kbd> go to the next and the previous head, </span><kbd>Esc</kbd> lets go. With the mouse: hover, click, drag to move, <kbd>Ctrl</kbd> and the wheel to zoom.</p>
  </section>
  <aside>
    <section class="panel" aria-label="The pair under the pointer"><p id="pair" role="status" aria-live="polite"></p>
      <canvas id="lens" aria-hidden="true" hidden></canvas></section>
    <section class="panel lists" id="lists" aria-label="The chosen token" hidden>
      <div><h2 id="to-title"></h2><ol id="to"></ol><p id="to-sum" class="sum"></p></div>
      <div><h2 id="by-title"></h2><ol id="by"></ol><p id="by-sum" class="sum"></p></div>
    </section>
    <section class="panel" aria-label="The tokens as text">
      <div class="bar"><h2>Tokens</h2><span class="space"></span>
        <label><input type="radio" name="tint" value="to" checked> looks at</label>
        <label><input type="radio" name="tint" value="by"> looked at by</label></div>
      <div id="text" tabindex="0" role="group" aria-label="Tokens as text" aria-describedby="text-keys"></div>
      <p class="hint" id="text-keys">Click a token, or move with the left and right arrow keys, to see what it attends to, and what attends
        to it.</p>
    </section>
  </aside>
</main>
)html";

inline constexpr const char* heatmap_data_program = R"js(
'use strict';
const data = JSON.parse(document.getElementById('data').textContent);
const get = id => document.getElementById(id);
const rows = data.rows, cols = data.cols, R = rows.length, C = cols.length;
const same = R === C && rows.every((label, i) => label === cols[i]);  // queries and keys are one sequence
const full = 65534, invalid = 65535;                                  // codes: weight = code * max / full; invalid is no weight

// What a label shows: line ends and tabs as arrows and spaces at its ends as dots, so that a newline token and the space before a word can
// be seen; characters that cannot be seen, or that would turn the writing around, by their number.
const unseen = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;
const show = label => label === '' ? '\u2205' :
    label.replace(/^ +| +$/g, spaces => '\u00b7'.repeat(spaces.length)).replace(/\n/g, '\u21b5').replace(/\t/g, '\u21e5')
         .replace(unseen, c => `<U+${c.charCodeAt(0).toString(16).toUpperCase().padStart(4, '0')}>`);

// A map's cells that are not 0, row by row: those of row r are start[r] to start[r + 1], by column. Unpacked when first needed and
// forgotten with its layer. `bounds` and `rest` are there where rows were shortened: the largest code that a row, and a block, left out.
const unpacked = new Map();
const packed = document.getElementsByClassName('cells');
function bytesOf(base64) {
  const text = atob(base64), bytes = new Uint8Array(text.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = text.charCodeAt(i);
  return bytes;
}
function cellsOf(map) {
  if (unpacked.has(map)) return unpacked.get(map);
  const json = JSON.parse(packed[data.maps.indexOf(map)].textContent);
  const bytes = bytesOf(json.data), most = bytes.length >> 1;  // a cell takes two bytes or more
  const cells = {start: new Uint32Array(R + 1), column: new Uint16Array(most), code: new Uint16Array(most), bounds: null, rest: null};
  if (map.kept) {
    cells.bounds = new Uint16Array(R);
    cells.rest = Uint16Array.from(bytesOf(json.rest), byte => Math.round(full * (byte / 255) ** 2));
  }
  let at = 0, to = 0;
  const next = () => {  // seven bits a byte, the low ones first
    let number = bytes[at] & 127;
    for (let shift = 7; bytes[at++] & 128; shift += 7) number |= (bytes[at] & 127) << shift;
    return number;
  };
  for (let r = 0; r < R; r++) {
    const count = next();
    let least = full;
    for (let k = 0, column = 0; k < count; k++, to++) {
      cells.column[to] = column += next();
      cells.code[to] = next();
      least = Math.min(least, cells.code[to]);
    }
    if (cells.bounds && count === map.kept) cells.bounds[r] = least;  // a row with room to spare left nothing out
    cells.start[r + 1] = to;
  }
  unpacked.set(map, cells);
  return cells;
}
function codeAt(map, r, c) {
  const {start, column, code} = cellsOf(map);
  let low = start[r], high = start[r + 1];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (column[middle] < c) low = middle + 1; else high = middle;
  }
  return low < start[r + 1] && column[low] === c ? code[low] : 0;
}
const blocksAcross = map => Math.ceil(C / map.block);
// What a cell that is not kept can be at most.
function boundAt(map, r, c) {
  const {bounds, rest} = cellsOf(map);
  return bounds ? Math.min(bounds[r], rest[Math.floor(r / map.block) * blocksAcross(map) + Math.floor(c / map.block)]) : 0;
}
const isMasked = (map, r, c) => c - r < map.band[0] || c - r > map.band[1];  // exactly 0, as everything beyond the band

const format = weight => weight === 0 ? '0' : weight >= 0.00005 ? weight.toFixed(4) : weight.toExponential(1);
function weightText(map, r, c) {
  const code = codeAt(map, r, c), bound = boundAt(map, r, c);
  if (code === invalid) return 'not a weight';
  if (code > 0) return format(code / full * map.max);
  if (map.max === 0 || isMasked(map, r, c)) return '0';
  return bound > 0 ? 'at most ' + format(bound / full * map.max) : 'under ' + format(map.max / full);
}

// Colours: two ramps that start at the ground they lie on. The ink grows with the root of the weight, so that small weights can be seen.
const dark = matchMedia('(prefers-color-scheme: dark)');
const stops = () => dark.matches ? [[27, 26, 34], [74, 32, 98], [166, 44, 96], [240, 120, 70], [255, 233, 170]]
                                 : [[255, 255, 255], [253, 224, 197], [243, 142, 110], [190, 40, 110], [62, 16, 84]];
let ramp = [];
function makeRamp() {
  const s = stops();
  ramp = Array.from({length: 256}, (_, i) => {
    const place = i / 255 * (s.length - 1), k = Math.min(Math.floor(place), s.length - 2);
    return s[k].map((v, n) => Math.round(v + (place - k) * (s[k + 1][n] - v)));
  });
}
const colour = code => code === invalid ? [0, 163, 163] : ramp[Math.round(255 * Math.sqrt(code / full))];
// Entropy has a colour of its own, so that a head's tile is not taken for a weight: blue, from the ground on.
const entropyColour = share => {
  const [from, to] = dark.matches ? [[38, 44, 58], [120, 200, 255]] : [[232, 240, 250], [12, 62, 120]];
  return from.map((v, n) => Math.round(v + share * (to[n] - v)));
};
const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// Paints the cells [r0, r0 + h) x [c0, c0 + w) on width x height pixels. A pixel that holds several cells shows the largest; an invalid cell
// outdoes every weight, so that one of a million is still seen. Under the cells that are kept lie the bounds of those that are not.
function paint(map, width, height, view) {
  const {start, column, code, bounds} = cellsOf(map), image = new ImageData(width, height), pixels = image.data;
  const x_of = c => Math.floor((c - view.c) * width / view.w), y_of = r => Math.floor((r - view.r) * height / view.h);
  const gap = width / view.w >= 9 && height / view.h >= 9 ? 1 : 0;
  const r0 = Math.max(0, Math.floor(view.r)), r1 = Math.min(R, Math.ceil(view.r + view.h));
  const c0 = Math.max(0, Math.floor(view.c)), c1 = Math.min(C, Math.ceil(view.c + view.w));
  const kept = new Uint16Array(width * height), left = new Uint16Array(width * height);
  const lit = new Uint8Array(width * height);  // within the band: not masked
  const fill = (layer, code, from, to, y0, y1) => {
    const x0 = Math.max(0, x_of(from)), x1 = Math.min(width, Math.max(x0 + 1, x_of(to) - gap));
    for (let y = y0; y < y1; y++)
      for (let x = x0, at = y * width + x0; x < x1; x++, at++)
        if (code > layer[at]) layer[at] = code;
  };
  for (let r = r0; r < r1; r++) {
    const y0 = Math.max(0, y_of(r)), y1 = Math.min(height, Math.max(y0 + 1, y_of(r + 1) - gap)), y_end = Math.min(height, Math.max(y0 + 1, y_of(r + 1)));
    const first = Math.max(c0, r + map.band[0]), end = Math.min(c1, r + map.band[1] + 1);
    if (first < end) {
      const x0 = Math.max(0, x_of(first)), x1 = Math.min(width, Math.max(x0 + 1, x_of(end)));
      for (let y = y0; y < y_end; y++) lit.fill(1, y * width + x0, y * width + x1);
    }
    if (bounds && bounds[r])
      for (let c = first; c < end; c = (Math.floor(c / map.block) + 1) * map.block)
        fill(left, boundAt(map, r, c), c, Math.min(end, (Math.floor(c / map.block) + 1) * map.block), y0, y1);
    for (let k = start[r]; k < start[r + 1]; k++)
      if (column[k] >= c0 && column[k] < c1) fill(kept, code[k], column[k], column[k] + 1, y0, y1);
  }
  const masked = dark.matches ? [38, 37, 46] : [241, 239, 243];
  for (let i = 0; i < kept.length; i++) {
    const [r, g, b] = lit[i] || kept[i] ? colour(kept[i] || left[i]) : masked;
    pixels[4 * i] = r; pixels[4 * i + 1] = g; pixels[4 * i + 2] = b; pixels[4 * i + 3] = 255;
  }
  return image;
}
)js";

inline constexpr const char* heatmap_view_program = R"js(
// The state: the map shown, the part in view, the cell under pointer or keyboard, the chosen tokens.
let map = data.maps[0];
const whole = () => ({r: 0, c: 0, h: R, w: C});
let view = whole(), cell = null, chosen = {row: null, col: null};

const canvas = get('map'), pen = canvas.getContext('2d'), sheet = document.createElement('canvas');
let box = {x: 0, y: 0, w: 1, h: 1};  // the plot inside the canvas, in CSS pixels
const font = '12px system-ui, "Segoe UI", "DejaVu Sans", sans-serif';

function clip(text, room) {
  if (pen.measureText(text).width <= room) return text;
  const letters = Array.from(text);
  while (letters.length && pen.measureText(letters.join('') + '\u2026').width > room) letters.pop();
  return letters.join('') + '\u2026';
}

function layout() {
  pen.font = font;
  const width = canvas.clientWidth;
  const room = (labels, most) => {  // for nearly all labels; the longest ones are clipped
    const widths = labels.slice(0, 4000).map(label => pen.measureText(show(label)).width).sort((a, b) => a - b);
    return Math.ceil(Math.min(most, 14 + (labels.length > 100 ? 36 : 0) + (widths[Math.floor(0.95 * widths.length)] || 0)));
  };
  const left = room(rows, Math.min(140, 0.28 * width)), top = room(cols, 120);
  const side = Math.max(400, innerHeight - top - 120);  // a square map is seen whole without scrolling
  box = {x: left, y: top, w: Math.max(50, Math.min(width - left - 2, R < C / 2 ? width : side)), h: 0};
  box.h = Math.max(40, Math.min(box.w * R / Math.max(1, C), box.w, R * 40));
  const height = top + box.h + 2, scale = devicePixelRatio || 1;
  canvas.style.height = height + 'px';
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  sheet.width = Math.max(1, Math.round(box.w * scale));
  sheet.height = Math.max(1, Math.round(box.h * scale));
}

function drawSheet() {
  if (R && C) sheet.getContext('2d').putImageData(paint(map, sheet.width, sheet.height, view), 0, 0);
  draw();
}

// One axis: labels where there is room for them, with their places where most are left out. `special` tokens, the current cell's and the
// chosen one, go before others.
function drawAxis(labels, first, count, length, special, put) {
  const size = length / count, least = 14 / size, ten = 10 ** Math.floor(Math.log10(Math.max(1, least)));
  const every = [1, 2, 5, 10].map(step => step * ten).find(step => step >= least);
  const text = i => every >= 5 ? `${i}  ${show(labels[i])}` : show(labels[i]);
  const place = i => (i - first + 0.5) * size;
  special = special.filter((i, k) => k === 0 || Math.abs(place(i) - place(special[0])) >= 14);
  const taken = special.map(place);
  for (let i = Math.max(0, Math.ceil(first - 0.5)); i < labels.length && i < first + count - 0.4; i++) {
    const at = place(i);
    if (special.includes(i)) put(text(i), at, true);
    else if (i % every === 0 && taken.every(t => Math.abs(t - at) >= 14)) put(text(i), at, false);
  }
}

// One picture of the part `view`: its cells as painted on `sheet` in the plot `box`, the axes' labels around it, and the marks.
function drawPicture(pen, sheet, box, view) {
  const scale = devicePixelRatio || 1, ink = css('--ink'), soft = css('--soft'), accent = css('--accent');
  pen.setTransform(scale, 0, 0, scale, 0, 0);
  pen.clearRect(0, 0, pen.canvas.width, pen.canvas.height);
  pen.drawImage(sheet, box.x, box.y, box.w, box.h);
  pen.strokeStyle = css('--line');
  pen.lineWidth = 1;
  pen.strokeRect(box.x - 0.5, box.y - 0.5, box.w + 1, box.h + 1);
  pen.font = font;
  pen.textBaseline = 'middle';
  const unique = list => list.filter((v, i) => v !== null && list.indexOf(v) === i);
  drawAxis(rows, view.r, view.h, box.h, unique([cell && cell.r, chosen.row]), (text, at, strong) => {
    pen.fillStyle = strong ? accent : soft;
    pen.textAlign = 'right';
    pen.fillText(clip(text, box.x - 10), box.x - 6, box.y + at);
  });
  drawAxis(cols, view.c, view.w, box.w, unique([cell && cell.c, chosen.col]), (text, at, strong) => {
    pen.save();
    pen.translate(box.x + at, box.y - 6);
    pen.rotate(-Math.PI / 2);
    pen.fillStyle = strong ? accent : soft;
    pen.textAlign = 'left';
    pen.fillText(clip(text, box.y - 10), 0, 0);
    pen.restore();
  });
  pen.save();
  pen.beginPath();
  pen.rect(box.x, box.y, box.w, box.h);
  pen.clip();
  const w = box.w / view.w, h = box.h / view.h;
  const x = c => box.x + (c - view.c) * w, y = r => box.y + (r - view.r) * h;
  pen.strokeStyle = accent;  // a frame, not a veil: the colours inside keep their meaning
  const by = Math.max(0.5, (6 - h) / 2), bx = Math.max(0.5, (6 - w) / 2);  // wide enough to see the row, or the column, inside
  if (chosen.row !== null) pen.strokeRect(box.x - 2, y(chosen.row) - by, box.w + 4, h + 2 * by);
  if (chosen.col !== null) pen.strokeRect(x(chosen.col) - bx, box.y - 2, w + 2 * bx, box.h + 4);
  if (cell) {
    pen.globalAlpha = 0.45;
    pen.fillStyle = ink;
    const cx = x(cell.c), cy = y(cell.r);  // lines from the axes' labels to the cell, and on, but not across it
    pen.fillRect(box.x, cy + h / 2 - 0.5, cx - box.x, 1);
    pen.fillRect(cx + w, cy + h / 2 - 0.5, box.x + box.w - cx - w, 1);
    pen.fillRect(cx + w / 2 - 0.5, box.y, 1, cy - box.y);
    pen.fillRect(cx + w / 2 - 0.5, cy + h, 1, box.y + box.h - cy - h);
    pen.globalAlpha = 1;
    pen.strokeStyle = ink;
    pen.lineWidth = 2;
    const grow = Math.max(0, (8 - Math.min(w, h)) / 2);
    pen.strokeRect(cx - grow, cy - grow, w + 2 * grow, h + 2 * grow);
  }
  pen.restore();
}

// Where cells are too small for the eye, a lens shows those around the current one.
const lens = get('lens'), glass = document.createElement('canvas');
const lensBox = {x: 110, y: 90, w: 221, h: 221};  // 13 x 13 cells of 17 pixels
function drawLens() {
  const scale = devicePixelRatio || 1, small = Math.min(box.w / view.w, box.h / view.h) < 6;
  lens.hidden = !small || !cell;
  if (lens.hidden) return;
  lens.width = Math.round((lensBox.x + lensBox.w + 2) * scale);
  lens.height = Math.round((lensBox.y + lensBox.h + 2) * scale);
  lens.style.width = lensBox.x + lensBox.w + 2 + 'px';
  glass.width = glass.height = Math.round(lensBox.w * scale);
  const around = {r: cell.r - 6, c: cell.c - 6, h: 13, w: 13};
  glass.getContext('2d').putImageData(paint(map, glass.width, glass.height, around), 0, 0);
  drawPicture(lens.getContext('2d'), glass, lensBox, around);
}

function draw() {
  drawPicture(pen, sheet, box, view);
  drawLens();
}

// The words that go with the picture. Elements are made, never parsed.
function say(parent, ...parts) {
  parent.replaceChildren(...parts);
}
function make(name, text, properties) {
  return Object.assign(document.createElement(name), {textContent: text}, properties);
}
function sayPair() {
  if (!cell) return say(get('pair'), 'Point at a cell to read its pair.');
  say(get('pair'), make('bdi', show(rows[cell.r])), ` (${data.row_name} ${cell.r}) \u2192 `, make('bdi', show(cols[cell.c])),
      ` (${data.col_name} ${cell.c}): `, make('b', weightText(map, cell.r, cell.c)));
}

function strongest(count, length, codeAt) {
  const order = [];
  for (let i = 0; i < length; i++) {
    const code = codeAt(i);
    if (code > 0 && code !== invalid) order.push([code, i]);
  }
  return order.sort((a, b) => b[0] - a[0] || a[1] - b[1]).slice(0, count);
}
function fillList(list, entries, labels, go) {
  const together = entries.reduce((sum, [code]) => sum + code / full * map.max, 0);
  get(list.id + '-sum').textContent = entries.length > 1 ? `${entries.length} shown, together ${format(together)}` : '';
  list.replaceChildren(...entries.map(([code, i]) => {
    const item = document.createElement('li'), button = make('button', '', {onclick: () => go(i)});
    const fill = document.createElement('i');
    fill.style.width = 100 * code / full + '%';
    button.append(fill, make('bdi', show(labels[i])), make('small', i), make('span', format(code / full * map.max)));
    button.title = `${show(labels[i])} (${i})`;
    item.append(button);
    return item;
  }));
  if (!entries.length) list.append(make('li', 'nothing'));
}
function sayChosen() {
  const {row, col} = chosen;
  get('lists').hidden = row === null && col === null;
  get('to').parentElement.hidden = row === null;
  get('by').parentElement.hidden = col === null;
  if (row !== null) {
    say(get('to-title'), make('bdi', show(rows[row])), ' looks at');
    fillList(get('to'), strongest(12, C, c => codeAt(map, row, c)), cols, c => { point(row, c); });
  }
  if (col !== null) {
    say(get('by-title'), make('bdi', show(cols[col])), ' is looked at by');
    fillList(get('by'), strongest(12, R, r => codeAt(map, r, col)), rows, r => { point(r, col); });
  }
  tint();
}

// The tokens as running text, tinted by the chosen token's weights. One sequence: one text. Two: the keys, and what looks at them.
const spans = [];
function writeText() {
  const spaced = cols.filter(label => /^\s|\s$/.test(label)).length;
  const glue = spaced > C / 5 ? '' : ' ';  // the tokens of a language model bring their own spaces
  cols.forEach((label, i) => {
    const span = make('span', label, {onclick: () => chooseToken(i)});
    span.addEventListener('mouseenter', () => { if (same && chosen.row !== null) point(chosen.row, i); });
    spans.push(span);
    get('text').append(span, glue);
  });
}
function tint() {
  const by = document.querySelector('input[name=tint]:checked').value === 'by' && same, {row, col} = chosen;
  const codes = spans.map((_, i) => by ? (col === null ? 0 : codeAt(map, i, col)) : (row === null ? 0 : codeAt(map, row, i)));
  const most = codes.reduce((most, code) => code === invalid ? most : Math.max(most, code), 1);
  spans.forEach((span, i) => {
    const share = codes[i] === invalid ? 0 : codes[i] / most;
    span.style.background = share > 0.004 ? `color-mix(in srgb, var(--accent) ${Math.round(70 * Math.sqrt(share))}%, transparent)` : '';
    span.classList.toggle('here', i === col);
  });
  if (col === null) return;
  const pane = get('text'), top = spans[col].offsetTop;  // the chosen token is in view; the page itself stays where it is
  if (top < pane.scrollTop || top > pane.scrollTop + pane.clientHeight - 30) pane.scrollTop = top - pane.clientHeight / 2;
}

function point(r, c) {
  cell = {r, c};
  if (r < view.r || r >= view.r + view.h || c < view.c || c >= view.c + view.w) {
    moveView(r - view.h / 2 + 0.5, c - view.w / 2 + 0.5);
    drawSheet();
  } else {
    draw();
  }
  sayPair();
}
function choose(row, col) {
  chosen = {row, col};
  sayChosen();
  draw();
}
const chooseRow = r => choose(r, same ? r : chosen.col);
const chooseColumn = c => choose(same ? c : chosen.row, c);
// A token of the text: the pair is the one it looks at most, or in a text of keys, the query that looks at it most.
function chooseToken(i) {
  chooseColumn(i);
  const most = same ? strongest(1, C, c => codeAt(map, i, c)) : strongest(1, R, r => codeAt(map, r, i));
  if (most.length) same ? point(i, most[0][1]) : point(most[0][1], i);
}

function moveView(r, c) {
  view.r = Math.max(0, Math.min(R - view.h, r));
  view.c = Math.max(0, Math.min(C - view.w, c));
}
function zoom(factor, at) {
  const centre = at || cell || {r: view.r + view.h / 2 - 0.5, c: view.c + view.w / 2 - 0.5};
  const fr = (centre.r + 0.5 - view.r) / view.h, fc = (centre.c + 0.5 - view.c) / view.w;
  view.h = Math.min(R, Math.max(Math.min(R, 6), view.h * factor));
  view.w = Math.min(C, Math.max(Math.min(C, 6), view.w * factor));
  moveView(centre.r + 0.5 - fr * view.h, centre.c + 0.5 - fc * view.w);
  drawSheet();
}
)js";

inline constexpr const char* heatmap_input_program = R"js(
// Pointer: which cell or axis label lies under it. An axis gives the token alone.
function under(event) {
  const frame = canvas.getBoundingClientRect(), x = event.clientX - frame.left - box.x, y = event.clientY - frame.top - box.y;
  const r = Math.floor(view.r + y * view.h / box.h), c = Math.floor(view.c + x * view.w / box.w);
  return {r: y >= 0 && r >= 0 && r < R && y < box.h ? r : null, c: x >= 0 && c >= 0 && c < C && x < box.w ? c : null};
}
// The strongest cell within two pixels: where cells are smaller than that, it is the one that is seen there.
function snap(at) {
  const dr = Math.floor(2 * view.h / box.h), dc = Math.floor(2 * view.w / box.w);
  let best = at, most = codeAt(map, at.r, at.c);
  for (let r = Math.max(0, at.r - dr); r <= Math.min(R - 1, at.r + dr); r++)
    for (let c = Math.max(0, at.c - dc); c <= Math.min(C - 1, at.c + dc); c++)
      if (codeAt(map, r, c) > most) [best, most] = [{r, c}, codeAt(map, r, c)];
  return best;
}
let drag = null;
canvas.addEventListener('pointerdown', event => {
  drag = {x: event.clientX, y: event.clientY, r: view.r, c: view.c, moved: false};
  canvas.setPointerCapture(event.pointerId);
});
canvas.addEventListener('pointermove', event => {
  if (drag && (event.buttons & 1)) {
    const dx = event.clientX - drag.x, dy = event.clientY - drag.y;
    drag.moved = drag.moved || Math.hypot(dx, dy) > 4;
    if (drag.moved) {
      moveView(drag.r - dy * view.h / box.h, drag.c - dx * view.w / box.w);
      return drawSheet();
    }
  }
  const at = under(event);
  if (at.r === null || at.c === null) return;
  const {r, c} = snap(at);
  if (!cell || cell.r !== r || cell.c !== c) point(r, c);
});
canvas.addEventListener('pointerup', event => {
  const {r, c} = under(event), moved = drag && drag.moved;
  drag = null;
  if (moved) return;
  if (r !== null && c !== null) {
    const nearest = snap({r, c});
    point(nearest.r, nearest.c);
    chooseRow(nearest.r);
    if (!same) chooseColumn(nearest.c);
  } else if (r !== null) {
    chooseRow(r);
  } else if (c !== null) {
    chooseColumn(c);
  }
});
canvas.addEventListener('wheel', event => {
  if (!event.ctrlKey && !event.metaKey) return;  // a plain wheel scrolls the page
  event.preventDefault();
  const {r, c} = under(event);
  if (r !== null && c !== null) zoom(event.deltaY > 0 ? 1.25 : 0.8, {r, c});
}, {passive: false});

canvas.addEventListener('keydown', event => {
  if (event.ctrlKey || event.metaKey || event.altKey || !R || !C) return;
  const from = cell || {r: Math.floor(view.r), c: Math.floor(view.c)};
  const go = (r, c) => point(Math.max(0, Math.min(R - 1, r)), Math.max(0, Math.min(C - 1, c)));
  const start = cell ? 1 : 0;  // the first arrow shows where we are
  const keys = {
    ArrowUp: () => go(from.r - start, from.c), ArrowDown: () => go(from.r + start, from.c),
    ArrowLeft: () => go(from.r, from.c - start), ArrowRight: () => go(from.r, from.c + start),
    Home: () => go(from.r, 0), End: () => go(from.r, C - 1), PageUp: () => go(from.r - 10, from.c), PageDown: () => go(from.r + 10, from.c),
    Enter: () => { chooseRow(from.r); if (!same) chooseColumn(from.c); }, '+': () => zoom(0.8), '=': () => zoom(0.8), '-': () => zoom(1.25),
    '0': showAll, n: () => pickNext(1), p: () => pickNext(-1),
  };
  if (keys[event.key]) {
    event.preventDefault();
    keys[event.key]();
  }
});
get('text').addEventListener('keydown', event => {
  if (event.ctrlKey || event.metaKey || event.altKey || !C) return;
  const at = chosen.col === null ? -1 : chosen.col;
  const next = {ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: C - 1}[event.key];
  if (next === undefined) return;
  event.preventDefault();
  chooseToken(Math.max(0, Math.min(C - 1, next)));
});
document.addEventListener('keydown', event => {
  if (event.key !== 'Escape') return;
  cell = null;
  choose(null, null);
  sayPair();
});

function showAll() {
  view = whole();
  drawSheet();
}
get('in').onclick = () => zoom(0.6);
get('out').onclick = () => zoom(1 / 0.6);
get('all').onclick = showAll;
document.querySelectorAll('input[name=tint]').forEach(input => { input.onchange = tint; });

// Layers and heads: every head in a grid of entropies, the heads of one layer as small maps.
const entropyText = m => m.entropy === null ? '' : `entropy ${m.entropy.toFixed(2)} nats`;
const nameOf = m => m.title || `layer ${m.layer}, head ${m.head}`;
const layers = [...new Set(data.maps.map(m => m.layer))];
const headsOf = layer => data.maps.filter(m => m.layer === layer);
const tiles = new Map();  // the grid's button of each map
function showMap(next) {
  map = next;
  say(get('which'), data.maps.length > 1 || map.title ? nameOf(map) : 'Weights', ' ', make('small', entropyText(map)));
  get('max').textContent = format(map.max);
  get('masked').hidden = !(map.max > 0 && (map.band[0] > 1 - R || map.band[1] < C - 1));
  get('reduced').textContent = map.kept ? `Reduced: each row keeps its ${map.kept} largest weights as they are. Of the others the page knows the ` +
      `largest in each block of ${map.block} \u00d7 ${map.block} cells; it draws that, and says \u201cat most\u201d.` : '';
  canvas.setAttribute('aria-label', `${nameOf(map)}: ${R} rows by ${C} columns of weights, ${entropyText(map)}`);
  for (const button of get('heads').children) button.setAttribute('aria-pressed', button.map === map);
  for (const [m, tile] of tiles) {
    tile.setAttribute('aria-pressed', m === map);
    tile.tabIndex = m === map ? 0 : -1;  // one stop for the Tab key; arrows go on from there
  }
  drawSheet();
  sayPair();
  sayChosen();
}
function showLayer(layer, next) {
  unpacked.clear();
  const heads = headsOf(layer), scale = devicePixelRatio || 1, size = Math.round(112 * scale);
  get('layer').selectedIndex = layers.indexOf(layer);
  get('heads').replaceChildren(...heads.map(m => {
    const button = make('button', '', {map: m, onclick: () => showMap(m)}), small = make('canvas', '', {width: size, height: size});
    if (R && C) small.getContext('2d').putImageData(paint(m, size, size, whole()), 0, 0);
    button.append(small, m.title || `head ${m.head}`, make('small', entropyText(m)));
    return button;
  }));
  showMap(next);
}
// The layer's head of the same number, where it has one.
const headLike = (layer, m) => headsOf(layer).find(other => other.head === m.head) || headsOf(layer)[0];
function pick(m) {
  if (m.layer === map.layer) showMap(m); else showLayer(m.layer, m);
}

const pickNext = step => pick(data.maps[Math.max(0, Math.min(data.maps.length - 1, data.maps.indexOf(map) + step))]);

// A column a layer, a row a head.
const mostEntropy = data.maps.reduce((most, m) => Math.max(most, m.entropy || 0), 0);
function writeGrid() {
  const grid = get('grid'), tall = Math.max(...layers.map(layer => headsOf(layer).length)), every = layers.length > 16 ? 5 : 1;
  const place = (element, row, column) => {
    element.style.gridArea = `${row} / ${column}`;
    grid.append(element);
  };
  grid.style.gridTemplateColumns = `max-content repeat(${layers.length}, minmax(0, 30px))`;
  place(make('span', 'layer', {className: 'head'}), 1, 1);
  for (let h = 0; h < tall; h++) place(make('span', `head ${headsOf(layers[0])[h] ? headsOf(layers[0])[h].head : h}`, {className: 'head'}), h + 2, 1);
  layers.forEach((layer, l) => {
    if (l % every === 0) place(make('span', String(layer)), 1, l + 2);
    headsOf(layer).forEach((m, h) => {
      const name = [`layer ${m.layer}, head ${m.head}`, m.title, entropyText(m)].filter(Boolean).join(': ');
      const tile = make('button', '', {title: name, onclick: () => pick(m)});
      tile.setAttribute('aria-label', name);
      tiles.set(m, tile);
      place(tile, h + 2, l + 2);
    });
  });
  grid.addEventListener('keydown', event => {
    const step = {ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1]}[event.key];
    if (!step || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    const inside = (value, length) => Math.max(0, Math.min(length - 1, value));
    const heads = headsOf(layers[inside(layers.indexOf(map.layer) + step[0], layers.length)]);
    pick(heads[inside(headsOf(map.layer).indexOf(map) + step[1], heads.length)]);
    tiles.get(map).focus();
  });
}
const tintGrid = () => tiles.forEach((tile, m) => {
  tile.style.background = m.entropy === null ? 'var(--masked)' : `rgb(${entropyColour(m.entropy / (mostEntropy || 1)).join()})`;
});

for (const layer of layers) get('layer').append(make('option', String(layer), {value: layer}));
get('layer').onchange = () => {
  const layer = layers[get('layer').selectedIndex];
  showLayer(layer, headLike(layer, map));
};
get('picker').hidden = data.maps.length < 2;
get('overview').hidden = layers.length < 2;
get('head-keys').hidden = data.maps.length < 2;
get('entropy-max').textContent = `${mostEntropy.toFixed(2)} nats`;
document.querySelectorAll('input[name=tint]').forEach(input => { input.parentElement.hidden = !same; });
get('title').textContent = document.title = data.title;
get('note').textContent = data.note;

function drawRamp(id, colourAt) {
  const legend = get(id).getContext('2d');
  for (let i = 0; i < 120; i++) {
    legend.fillStyle = `rgb(${colourAt(i / 119).join()})`;
    legend.fillRect(i, 0, 1, 10);
  }
}
function repaint() {
  makeRamp();
  drawRamp('ramp', share => colour(Math.round(share * full)));
  drawRamp('entropy-ramp', entropyColour);
  tintGrid();
  layout();
  showLayer(map.layer, map);
}
if (layers.length > 1) writeGrid();
writeText();
repaint();
dark.addEventListener('change', repaint);
let width = canvas.clientWidth;
new ResizeObserver(() => {
  if (canvas.clientWidth === width) return;  // the height is our own doing
  width = canvas.clientWidth;
  layout();
  drawSheet();
}).observe(canvas);
)js";

}  // namespace detail
HEED_NAMESPACE_END
