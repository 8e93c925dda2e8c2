R"js(
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

// Colours: two ramps that start at the background. The ink grows with the root of the weight, so that small weights can be seen.
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
// outdoes every weight, so that one of a million is still seen. Under the cells that are kept are the bounds of those that are not.
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
)js"
