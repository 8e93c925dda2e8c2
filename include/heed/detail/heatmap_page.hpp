#pragma once

#include <heed/detail/abi.hpp>

// The page that heatmap.hpp fills: style, body and program as text. It reads one JSON block, #data, and reaches nothing outside
// itself; every label enters the document as text, never as markup.

HEED_NAMESPACE_BEGIN
namespace detail {

inline constexpr const char* heatmap_style = R"css(
:root {
  color-scheme: light dark;
  --ground: #fbfaf7; --panel: #ffffff; --ink: #1d1b22; --soft: #67636f; --line: #dedbe3; --accent: #b0155f; --bad: #00a3a3;
}
@media (prefers-color-scheme: dark) {
  :root { --ground: #131218; --panel: #1b1a22; --ink: #eceaf1; --soft: #a5a0b0; --line: #35323f; --accent: #ff8f5a; --bad: #19d3d3; }
}
* { box-sizing: border-box; }
body { margin: 0; padding: 24px clamp(12px, 3vw, 40px); background: var(--ground); color: var(--ink);
       font: 15px/1.5 system-ui, "Segoe UI", "Helvetica Neue", "DejaVu Sans", sans-serif; }
h1 { margin: 0; font-size: 1.6rem; line-height: 1.2; }
h2 { margin: 0 0 6px; font-size: .95rem; }
h2 small { margin-left: 6px; font-weight: normal; color: var(--soft); }
header p { margin: 6px 0 0; max-width: 75ch; color: var(--soft); }
header, #picker { margin-bottom: 18px; }
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
#heads { display: flex; flex-wrap: wrap; gap: 10px; margin-top: 10px; }
#heads button { padding: 6px; text-align: left; font-size: .8rem; line-height: 1.3; }
#heads button[aria-pressed=true] { border-color: var(--accent); box-shadow: 0 0 0 1px var(--accent); }
#heads canvas { width: 112px; height: 112px; margin-bottom: 4px; image-rendering: pixelated; }
#heads small { display: block; color: var(--soft); }
.legend { display: flex; gap: 7px; align-items: center; font-size: .8rem; color: var(--soft); }
#ramp { width: 120px; height: 10px; border-radius: 3px; }
#pair { font-size: 1.15rem; min-height: 3.2em; margin: 0; overflow-wrap: anywhere; }
#pair b { font-variant-numeric: tabular-nums; color: var(--accent); font-size: 1.3em; }
bdi { font-weight: 600; white-space: pre-wrap; }
.hint { margin: 8px 0 0; font-size: .8rem; color: var(--soft); }
kbd { border: 1px solid var(--line); border-radius: 4px; padding: 0 4px; font: inherit; }
.lists { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 16px; }
ol { list-style: none; margin: 0; padding: 0; font-size: .88rem; }
ol button { position: relative; display: flex; width: 100%; justify-content: space-between; gap: 8px; border: 0; padding: 2px 6px;
            background: none; text-align: left; }
ol button i { position: absolute; inset: 2px auto 2px 0; background: var(--accent); opacity: .2; border-radius: 4px; }
ol button bdi { overflow: hidden; text-overflow: ellipsis; white-space: pre; }
ol button span { font-variant-numeric: tabular-nums; color: var(--soft); }
#text { max-height: 24em; overflow: auto; line-height: 1.75; overflow-wrap: anywhere; }
#text span { cursor: pointer; border-radius: 3px; padding: 1px 0; unicode-bidi: isolate; white-space: pre-wrap; }
#text span:hover { outline: 1px solid var(--accent); }
#text span.here { outline: 2px solid var(--accent); }
[hidden] { display: none !important; }
)css";

inline constexpr const char* heatmap_body = R"html(
<header><h1 id="title"></h1><p id="note"></p></header>
<nav id="picker" class="panel" aria-label="Layers and heads">
  <label>Layer <select id="layer"></select></label>
  <div id="heads" role="group" aria-label="Heads of this layer"></div>
</nav>
<main>
  <section class="panel" aria-label="Heat map">
    <div class="bar">
      <h2 id="which"></h2><span class="space"></span>
      <span class="legend"><span>0</span><canvas id="ramp" width="120" height="10" aria-hidden="true"></canvas><span id="max"></span></span>
      <button id="out" aria-label="Zoom out">&minus;</button><button id="in" aria-label="Zoom in">+</button><button id="all">Whole map</button>
    </div>
    <canvas id="map" tabindex="0" role="application" aria-roledescription="heat map" aria-describedby="keys"></canvas>
    <p class="hint" id="keys">Arrow keys move from cell to cell, <kbd>Home</kbd> and <kbd>End</kbd> along the row, <kbd>Page Up</kbd> and
      <kbd>Page Down</kbd> ten rows; <kbd>Enter</kbd> chooses the row's token, <kbd>+</kbd> <kbd>&minus;</kbd> <kbd>0</kbd> zoom, <kbd>Esc</kbd>
      lets go. With the mouse: hover, click, drag to move, <kbd>Ctrl</kbd> and the wheel to zoom.</p>
  </section>
  <aside>
    <section class="panel" aria-label="The pair under the pointer"><p id="pair" role="status" aria-live="polite"></p></section>
    <section class="panel lists" id="lists" aria-label="The chosen token" hidden>
      <div><h2 id="to-title"></h2><ol id="to"></ol></div>
      <div><h2 id="by-title"></h2><ol id="by"></ol></div>
    </section>
    <section class="panel" aria-label="The tokens as text">
      <div class="bar"><h2>Tokens</h2><span class="space"></span>
        <label><input type="radio" name="tint" value="to" checked> looks at</label>
        <label><input type="radio" name="tint" value="by"> looked at by</label></div>
      <div id="text" tabindex="0"></div>
      <p class="hint">Click a token to see what it attends to, and what attends to it.</p>
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

// What a label shows: its control characters as pictures, so that a newline token can be seen.
const show = label => label === '' ? '\u2205' : label.replace(/[\u0000-\u001f]/g, c => String.fromCharCode(0x2400 + c.charCodeAt(0)));

// The codes of a map, row by row, unpacked when first needed and forgotten with its layer.
const unpacked = new Map();
function codesOf(map) {
  if (unpacked.has(map)) return unpacked.get(map);
  const bytes = Uint8Array.from(atob(map.data), c => c.charCodeAt(0));
  const words = new Uint16Array(bytes.length / 2);
  for (let i = 0; i < words.length; i++) words[i] = bytes[2 * i] | bytes[2 * i + 1] << 8;
  let result = {codes: words, bounds: null};
  if (map.kept) {  // each row: `kept` pairs (column, code); what was left out is at most the smallest of them
    result = {codes: new Uint16Array(R * C), bounds: new Uint16Array(R).fill(full)};
    for (let r = 0, at = 0; r < R; r++) {
      for (let k = 0; k < map.kept; k++, at += 2) {
        result.codes[r * C + words[at]] = words[at + 1];
        result.bounds[r] = Math.min(result.bounds[r], words[at + 1]);
      }
    }
  }
  unpacked.set(map, result);
  return result;
}

const format = weight => weight === 0 ? '0' : weight >= 0.00005 ? weight.toFixed(4) : weight.toExponential(1);
function weightText(map, r, c) {
  const {codes, bounds} = codesOf(map), code = codes[r * C + c];
  if (code === invalid) return 'not a weight';
  if (code === 0 && bounds) return 'at most ' + format(bounds[r] * map.max / full);
  return code === 0 && map.max > 0 ? 'under ' + format(map.max / full) : format(code * map.max / full);
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
const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// Paints the cells [r0, r0 + h) x [c0, c0 + w) on width x height pixels. A pixel that holds several cells shows the largest; an invalid cell
// outdoes every weight, so that one of a million is still seen.
function paint(map, width, height, view) {
  const {codes} = codesOf(map), image = new ImageData(width, height), pixels = image.data;
  const x_of = c => Math.floor((c - view.c) * width / view.w), y_of = r => Math.floor((r - view.r) * height / view.h);
  const strongest = new Uint16Array(width * height);
  const gap = width / view.w >= 9 && height / view.h >= 9 ? 1 : 0;
  const r1 = Math.min(R, Math.ceil(view.r + view.h)), c1 = Math.min(C, Math.ceil(view.c + view.w));
  for (let r = Math.max(0, Math.floor(view.r)); r < r1; r++) {
    const y0 = Math.max(0, y_of(r)), y1 = Math.min(height, Math.max(y0 + 1, y_of(r + 1) - gap));
    for (let c = Math.max(0, Math.floor(view.c)); c < c1; c++) {
      const code = codes[r * C + c];
      if (code === 0) continue;
      const x0 = Math.max(0, x_of(c)), x1 = Math.min(width, Math.max(x0 + 1, x_of(c + 1) - gap));
      for (let y = y0; y < y1; y++)
        for (let x = x0; x < x1; x++)
          if (code > strongest[y * width + x]) strongest[y * width + x] = code;
    }
  }
  for (let i = 0; i < strongest.length; i++) {
    const [r, g, b] = colour(strongest[i]);
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
  const longest = labels => Math.min(110, 12 + labels.slice(0, 4000).reduce((w, l) => Math.max(w, pen.measureText(show(l)).width), 12));
  const left = longest(rows), top = longest(cols), width = canvas.clientWidth;
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

// One axis: labels where there is room for them; the tokens of the current cell and the chosen ones always.
function drawAxis(labels, first, count, length, special, put) {
  const size = length / count, every = Math.max(1, Math.ceil(13 / size));
  const taken = special.map(i => (i - first + 0.5) * size);
  for (let i = Math.max(0, Math.ceil(first - 0.5)); i < labels.length && i < first + count - 0.4; i++) {
    const at = (i - first + 0.5) * size;
    if (special.includes(i)) put(show(labels[i]), at, true);
    else if (i % every === 0 && taken.every(t => Math.abs(t - at) >= 13)) put(show(labels[i]), at, false);
  }
}

function draw() {
  const scale = devicePixelRatio || 1, ink = css('--ink'), soft = css('--soft'), accent = css('--accent');
  pen.setTransform(scale, 0, 0, scale, 0, 0);
  pen.clearRect(0, 0, canvas.width, canvas.height);
  pen.drawImage(sheet, box.x, box.y, box.w, box.h);
  pen.strokeStyle = css('--line');
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
  if (chosen.row !== null) pen.strokeRect(box.x - 2, y(chosen.row) - 0.5, box.w + 4, h + 1);
  if (chosen.col !== null) pen.strokeRect(x(chosen.col) - 0.5, box.y - 2, w + 1, box.h + 4);
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
  list.replaceChildren(...entries.map(([code, i]) => {
    const item = document.createElement('li'), button = make('button', '', {onclick: () => go(i)});
    const fill = document.createElement('i');
    fill.style.width = 100 * code / full + '%';
    button.append(fill, make('bdi', show(labels[i])), make('span', format(code * map.max / full)));
    button.title = `${show(labels[i])} (${i})`;
    item.append(button);
    return item;
  }));
  if (!entries.length) list.append(make('li', 'nothing'));
}
function sayChosen() {
  const {codes} = codesOf(map), {row, col} = chosen;
  get('lists').hidden = row === null && col === null;
  get('to').parentElement.hidden = row === null;
  get('by').parentElement.hidden = col === null;
  if (row !== null) {
    say(get('to-title'), make('bdi', show(rows[row])), ' looks at');
    fillList(get('to'), strongest(12, C, c => codes[row * C + c]), cols, c => { point(row, c); });
  }
  if (col !== null) {
    say(get('by-title'), make('bdi', show(cols[col])), ' is looked at by');
    fillList(get('by'), strongest(12, R, r => codes[r * C + col]), rows, r => { point(r, col); });
  }
  tint();
}

// The tokens as running text, tinted by the chosen token's weights. One sequence: one text. Two: the keys, and what looks at them.
const spans = [];
function writeText() {
  const spaced = cols.filter(label => /^\s|\s$/.test(label)).length;
  const glue = spaced > C / 5 ? '' : ' ';  // the tokens of a language model bring their own spaces
  cols.forEach((label, i) => {
    const span = make('span', label, {onclick: () => chooseColumn(i)});
    span.addEventListener('mouseenter', () => { if (same && chosen.row !== null) point(chosen.row, i); });
    spans.push(span);
    get('text').append(span, glue);
  });
}
function tint() {
  const {codes} = codesOf(map), by = document.querySelector('input[name=tint]:checked').value === 'by' && same;
  const codeAt = i => by ? (chosen.col === null ? 0 : codes[i * C + chosen.col]) : (chosen.row === null ? 0 : codes[chosen.row * C + i]);
  let most = 1;
  for (let i = 0; i < C; i++) if (codeAt(i) !== invalid) most = Math.max(most, codeAt(i));
  spans.forEach((span, i) => {
    const code = codeAt(i), share = code === invalid ? 0 : code / most;
    span.style.background = share > 0.004 ? `color-mix(in srgb, var(--accent) ${Math.round(70 * Math.sqrt(share))}%, transparent)` : '';
    span.classList.toggle('here', i === chosen.col);
  });
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
  const {r, c} = under(event);
  if (r !== null && c !== null && !(cell && cell.r === r && cell.c === c)) point(r, c);
});
canvas.addEventListener('pointerup', event => {
  const {r, c} = under(event), moved = drag && drag.moved;
  drag = null;
  if (moved) return;
  if (r !== null && c !== null) {
    point(r, c);
    chooseRow(r);
    if (!same) chooseColumn(c);
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
    '0': showAll,
  };
  if (keys[event.key]) {
    event.preventDefault();
    keys[event.key]();
  }
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

// Layers and heads.
const entropyText = m => m.entropy === null ? '' : `entropy ${m.entropy.toFixed(2)} nats`;
const nameOf = m => m.title || `layer ${m.layer}, head ${m.head}`;
function showMap(next) {
  map = next;
  say(get('which'), data.maps.length > 1 || map.title ? nameOf(map) : 'Weights', ' ', make('small', entropyText(map)));
  get('max').textContent = format(map.max);
  canvas.setAttribute('aria-label', `${nameOf(map)}: ${R} rows by ${C} columns of weights, ${entropyText(map)}`);
  for (const button of get('heads').children) button.setAttribute('aria-pressed', button.map === map);
  drawSheet();
  sayPair();
  sayChosen();
}
function showLayer(layer) {
  unpacked.clear();
  const heads = data.maps.filter(m => m.layer === layer), scale = devicePixelRatio || 1, size = Math.round(112 * scale);
  get('heads').replaceChildren(...heads.map(m => {
    const button = make('button', '', {map: m, onclick: () => showMap(m)}), small = make('canvas', '', {width: size, height: size});
    if (R && C) small.getContext('2d').putImageData(paint(m, size, size, whole()), 0, 0);
    button.append(small, m.title || `head ${m.head}`, make('small', entropyText(m)));
    return button;
  }));
  showMap(heads.includes(map) ? map : heads.find(m => m.head === map.head) || heads[0]);
}

const layers = data.maps.map(m => m.layer).filter((layer, i, list) => list.indexOf(layer) === i);
for (const layer of layers) get('layer').append(make('option', String(layer), {value: layer}));
get('layer').onchange = () => showLayer(layers[get('layer').selectedIndex]);
get('picker').hidden = data.maps.length < 2;
get('layer').parentElement.hidden = layers.length < 2;
document.querySelectorAll('input[name=tint]').forEach(input => { input.parentElement.hidden = !same; });
get('title').textContent = document.title = data.title;
get('note').textContent = data.note;

function repaint() {
  makeRamp();
  const legend = get('ramp').getContext('2d');
  for (let i = 0; i < 120; i++) {
    legend.fillStyle = `rgb(${colour(Math.round(i / 119 * full)).join()})`;
    legend.fillRect(i, 0, 1, 10);
  }
  layout();
  showLayer(map.layer);
}
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
