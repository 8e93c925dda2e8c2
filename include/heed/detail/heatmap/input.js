R"js(
// Pointer: which cell or axis label is under it. An axis gives the token alone.
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
)js"
