R"js(
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
)js"
