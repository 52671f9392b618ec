/* Token strips on a canvas: log-probability, advantage, weight version, mask and, once recomputed, ratio and objective. */
const WINDOW = 1024;
const MOST_SHOWN = 4096;
const LABEL = 104;
const STRIP = 22;
const STRIPS = ['log-probability', 'advantage', 'weights', 'trained'];
const TERMS = ['ratio', 'objective'];
const POLL_MS = 1500;
let view = null;

function strips() { return view.hasTerms ? [...STRIPS, ...TERMS] : STRIPS; }
function height() { return strips().length * STRIP + 18; }

function colours() {
  const probe = document.body.appendChild(document.createElement('i'));
  const palette = {};
  for (const name of ['ink', 'ink-3', 'line-2', 'sunken', 's1', 's3', 's4', 's5', 'r0', 'r4', 'surface']) {
    probe.style.color = `var(--${name})`;
    palette[name] = getComputedStyle(probe).color;
  }
  probe.remove();
  return palette;
}

function number(y, digits) { return y === null || y === undefined ? '–' : Number(y).toFixed(digits).replace('-', '−'); }

function token(at) {
  const window = view.windows.get(Math.floor(at / WINDOW));
  return window && window.ids && at % WINDOW < window.ids.length ? { window, k: at % WINDOW } : null;
}

/* Windows in sight are read once each; the strips are drawn as they come. */
async function read() {
  const reading = view;
  for (let n = Math.floor(view.first / WINDOW); n <= Math.floor((view.first + view.shown - 1) / WINDOW); n++) {
    if (view.windows.has(n)) continue;
    view.windows.set(n, {});
    try {
      const response = await fetch(`${view.box.dataset.tokens}?first=${n * WINDOW}&n=${WINDOW}`);
      const answer = await response.json();
      if (!response.ok) throw new Error(answer.detail);
      reading.windows.set(n, answer);
      if (answer.ratios.length) reading.hasTerms = true;
      for (const term of answer.objectives) reading.most = Math.max(reading.most, Math.abs(term ?? 0));
      if (n === Math.floor(reading.first / WINDOW)) follow(reading, answer.recomputation);
      if (answer.notes.length && reading.at === null) reading.readout.textContent = answer.notes.join(' ');
    } catch (error) {
      reading.windows.delete(n);
      reading.readout.textContent = `Tokens cannot be read: ${error.message}`;
      return;
    }
    if (reading === view) schedule();
  }
}

function bar(context, x, y, width, height, colour, alpha) {
  context.globalAlpha = alpha;
  context.fillStyle = colour;
  context.fillRect(x, y, width, height);
}

/* A share from -1 to 1 as a bar up or down from the middle of a strip. */
function diverging(context, x, y, width, share, colour) {
  const half = (STRIP - 6) / 2, size = Math.max(1, Math.min(1, Math.abs(share)) * half);
  bar(context, x, y, width, 2 * half, colour, .12);
  bar(context, x, share > 0 ? y + half - size : y + half, width, size, colour, 1);
}

function column(context, palette, strip, x, width, { window, k }) {
  const y = strip * STRIP + 2, height = STRIP - 6;
  const term = strip === 4 ? window.ratios[k] : strip === 5 ? window.objectives[k] : 0;
  if (strip === 3 ? !window.mask[k] : !window.response[k] || (strip !== 2 && !window.drawn[k]) || term === null || term === undefined) {
    bar(context, x, y, width, height, palette.sunken, 1);
    bar(context, x, y + height / 2, width, 1, palette['line-2'], 1);
  } else if (strip === 0) {
    const depth = Math.min(1, -(window.logprobs[k] ?? 0) / 4);
    bar(context, x, y, width, height, palette.s1, .14);
    bar(context, x, y, width, Math.max(2, depth * height), palette.s1, .55 + .45 * depth);
  } else if (strip === 1) {
    const advantage = window.advantages[k];
    if (advantage === null || advantage === undefined) bar(context, x, y, width, height, palette.sunken, 1);
    else bar(context, x, y, width, height, advantage >= 0 ? palette.r4 : palette.r0, Math.min(1, .12 + Math.abs(advantage) * .55));
  } else if (strip === 2) bar(context, x, y, width, height, palette.s3, window.versions[k] === view.oldest ? .35 : .95);
  else if (strip === 3) bar(context, x, y, width, height, palette.s5, .75);
  else if (strip === 4) diverging(context, x, y, width, Math.log(Math.max(term, 1e-9)) / .4, palette.s4);
  else diverging(context, x, y, width, view.most ? term / view.most : 0, term >= 0 ? palette.r0 : palette.r4);
}

function paint() {
  const { canvas } = view;
  const width = canvas.clientWidth, scale = devicePixelRatio || 1;
  const names = strips(), total = height();
  if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(total * scale)) {
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(total * scale);
    canvas.style.height = `${total}px`;
  }
  const context = canvas.getContext('2d');
  const palette = view.colours;
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, width, total);
  const font = getComputedStyle(document.body).fontFamily;
  const step = (width - LABEL) / view.shown;
  const gap = step > 3 ? 1 : 0;
  context.textBaseline = 'middle';
  context.font = `11px ${font}`;
  names.forEach((name, strip) => {
    context.globalAlpha = 1;
    context.fillStyle = palette['ink-3'];
    context.fillText(name, 0, strip * STRIP + STRIP / 2 - 1);
  });
  const end = Math.min(view.total, view.first + view.shown);
  let before = null;
  for (let at = view.first; at < end; at++) {
    const sample = token(at);
    const x = LABEL + (at - view.first) * step;
    if (!sample) continue;
    if (view.oldest === null && sample.window.versions[sample.k] !== null) view.oldest = sample.window.versions[sample.k];
    for (let strip = 0; strip < names.length; strip++) column(context, palette, strip, x, Math.max(.75, step - gap), sample);
    const version = sample.window.versions[sample.k];
    if (version !== before && version !== null) {
      context.globalAlpha = 1;
      context.fillStyle = palette.ink;
      context.fillText(`v${version}`, x + 4, 2 * STRIP + STRIP / 2 - 1);
    }
    before = version;
  }
  context.globalAlpha = 1;
  context.fillStyle = palette['ink-3'];
  context.font = `10px ${font}`;
  const apart = [1, 5, 10, 25, 50, 100, 250, 500, 1000].find(size => size * step >= 44) ?? 1000;
  for (let at = Math.ceil(view.first / apart) * apart; at < end; at += apart) context.fillText(String(at), LABEL + (at - view.first) * step, total - 8);
  if (view.at !== null) {
    context.strokeStyle = palette.ink;
    context.strokeRect(LABEL + (view.at - view.first) * step - .5, .5, Math.max(2, step), names.length * STRIP - 2);
  }
}

function tell() {
  const sample = token(view.at);
  if (!sample) return;
  const { window, k } = sample;
  const words = [`token ${view.at}`, window.texts.length ? JSON.stringify(window.texts[k]) : `id ${window.ids[k]}`];
  if (window.drawn[k]) words.push(`log-probability ${number(window.logprobs[k], 4)} (p ${number(Math.exp(window.logprobs[k]), 3)})`);
  else words.push(window.response[k] ? 'written by the workflow' : 'prompt');
  if (window.advantages.length && window.advantages[k] !== null) words.push(`advantage ${number(window.advantages[k], 3)}`);
  if (window.versions[k] !== null) words.push(`weight version ${window.versions[k]}`);
  words.push(window.mask[k] ? 'trained' : 'not trained');
  for (const [name, column] of [['ratio when trained', 'ratios'], ['KL', 'kls'], ['policy term', 'policy_terms'],
    ['entropy term', 'entropy_terms'], ['KL term', 'kl_terms'], ['objective', 'objectives']]) {
    const term = window[column][k];
    if (term !== null && term !== undefined) words.push(`${name} ${Math.abs(term) >= .001 || !term ? number(term, 4) : term.toExponential(2)}`);
  }
  view.readout.textContent = words.join(' · ');
}

function move(first) {
  view.first = Math.round(Math.max(0, Math.min(view.total - view.shown, first)));
  view.pan.value = String(view.first);
  schedule();
}

function point(at) {
  view.at = Math.max(0, Math.min(view.total - 1, at));
  if (view.at < view.first || view.at >= view.first + view.shown) move(view.at - view.shown / 2);
  schedule();
}

/* One drawing a frame, however many signs come. */
function schedule() {
  if (view.frame) return;
  view.frame = requestAnimationFrame(() => { view.frame = 0; paint(); if (view.at !== null) tell(); read(); });
}

function zoom(factor, around = view.at ?? view.first + view.shown / 2) {
  const fewest = Math.min(view.total, 16);
  const shown = Math.max(fewest, Math.min(view.total, MOST_SHOWN, Math.round(view.shown / factor)));
  const share = (around - view.first) / view.shown;
  view.shown = shown;
  view.pan.max = String(Math.max(0, view.total - shown));
  view.pan.hidden = view.total <= shown;
  move(around - share * shown);
}

/* The state of the step's replay, read again until it ends; then the windows are read with its columns. */
function follow(reading, recomputation) {
  const { terms } = reading;
  if (!terms || !recomputation || reading !== view) return;
  const isWaiting = ['queued', 'running'].includes(recomputation.state);
  terms.querySelector('button').hidden = isWaiting || recomputation.state === 'done';
  terms.querySelector('span').textContent = reading.hasTerms ? `Recomputed by a replay of step ${recomputation.step}.` : recomputation.sentence;
  if (!isWaiting || reading.timer) return;
  reading.timer = setTimeout(async () => {
    reading.timer = 0;
    if (reading !== view || !reading.box.isConnected) return;
    try {
      const answer = await (await fetch(`${reading.box.dataset.tokens}?n=1`)).json();
      if (answer.recomputation?.state === 'done') { reading.windows.clear(); schedule(); } else follow(reading, answer.recomputation);
    } catch { follow(reading, recomputation); }
  }, POLL_MS);
}

async function recompute(reading) {
  const said = reading.terms.querySelector('span'), key = crypto.randomUUID?.() ?? String(Math.random());
  try {
    const response = await fetch(reading.terms.dataset.recompute, {
      method: 'POST', body: '{}', headers: { 'Content-Type': 'application/json', 'Idempotency-Key': key },
    });
    const state = await response.json();
    if (!response.ok) throw new Error([state.detail || state.title, state.fix].filter(Boolean).join(': '));
    if (state.state === 'done') { reading.windows.clear(); schedule(); } else follow(reading, state);
  } catch (error) { said.textContent = error.message; }
}

function begin() {
  const box = document.getElementById('strips');
  if (!box || view?.box === box) return;
  const total = Number(box.dataset.total);
  const canvas = box.querySelector('canvas');
  if (!total) { box.hidden = true; return; }
  view = { box, canvas, total, first: 0, shown: Math.min(total, 256), at: null, oldest: null, frame: 0, windows: new Map(),
    pan: box.querySelector('.pan'), readout: box.querySelector('.readout'), colours: colours(),
    terms: box.querySelector('.terms'), hasTerms: false, most: 0, timer: 0 };
  const reading = view;
  reading.terms?.querySelector('button').addEventListener('click', () => recompute(reading));
  const at = event => Math.floor(view.first + (event.offsetX - LABEL) / ((canvas.clientWidth - LABEL) / view.shown));
  canvas.addEventListener('pointermove', event => { if (event.offsetX >= LABEL) point(Math.min(at(event), view.first + view.shown - 1)); });
  canvas.addEventListener('wheel', event => {
    if (event.ctrlKey) zoom(event.deltaY < 0 ? 1.25 : .8, at(event));
    else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) move(view.first + (event.deltaX || event.deltaY) * view.shown / 1000);
    else return;
    event.preventDefault();
  }, { passive: false });
  canvas.addEventListener('keydown', event => {
    const by = { ArrowLeft: -1, ArrowRight: 1, PageUp: -view.shown, PageDown: view.shown, Home: -view.total, End: view.total }[event.key];
    if (by) { event.preventDefault(); point((view.at ?? view.first) + by); }
  });
  view.pan.addEventListener('input', () => move(Number(view.pan.value)));
  for (const button of box.querySelectorAll('[data-zoom]')) button.addEventListener('click', () => zoom(Number(button.dataset.zoom)));
  zoom(1, 0);
}

function recolour() { if (view) { view.colours = colours(); schedule(); } }
addEventListener('theme', recolour);
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', recolour);
addEventListener('resize', () => { if (view) schedule(); });
document.addEventListener('htmx:afterSettle', begin);
begin();
