/* A lane for each rollout slot and for the trainer's phases, on a canvas, from the run's timeline. Above 64 lanes a
 * carpet: rows of a few pixels without gaps. A time with too many rollouts shows the mean number under way. */
import { changes } from './live.js';

const panel = document.getElementById('timeline');
const canvas = document.getElementById('lanes');
const overview = document.getElementById('overview');
const readout = document.getElementById('readout');
const [LABEL, RIGHT, TOP, OVERVIEW] = [120, 46, 24, 30];
const [MOST_LANES, CARPET_PX, POINTS] = [64, 640, 400];
const HOLDS = { experiences: 'waits for experiences', prepares: 'publishes or saves', paused: 'paused', no_trainer: 'no trainer' };
const DROPPED = ['retired', 'late'];
let whole = null, answer = null, lanes = [], shown = null, hot = null, drag = null, by = 'fate', paints = {};

const ms = Date.parse;
function clock(time) { return new Date(time).toISOString().slice(11, shown && shown[1] - shown[0] < 20000 ? 23 : 19); }
function lasting(length) { return length < 1000 ? `${length.toPrecision(3)} ms` : length < 120000 ? `${(length / 1000).toPrecision(3)} s` : `${Math.round(length / 60000)} min`; }

function colours() {
  const probe = document.body.appendChild(document.createElement('i'));
  paints = {};
  for (const name of ['ink', 'ink-2', 'ink-3', 'sunken', 'surface', 'grid', 'accent', 'accent-soft', 's1', 's3', 's4', 'r0', 'warn']) {
    probe.style.color = `var(--${name})`;
    paints[name] = getComputedStyle(probe).color;
  }
  probe.remove();
}

/* One lane a slot: spans with begin, end, words, and the page that they open. */
function lanesOf(timeline) {
  const trainer = { name: 'trainer', kind: 'trainer', spans: [] };
  for (const step of timeline.steps) {
    const name = step.first_step === step.last_step ? `step ${step.first_step}` : `steps ${step.first_step} to ${step.last_step}`;
    trainer.spans.push({ begin: ms(step.begun_at), end: ms(step.ended_at), kind: 'step', busy: step.busy, text: name, open: `?step=${step.last_step}` });
  }
  for (const idle of timeline.idle) trainer.spans.push({ begin: ms(idle.begun_at), end: ms(idle.ended_at), kind: 'idle', label: HOLDS[idle.hold] || idle.hold, text: idle.text });
  trainer.spans.sort((a, b) => a.begin - b.begin);
  const result = [trainer];
  for (const worker of timeline.workers.filter(candidate => candidate.role !== 'trainer')) {
    const name = `${worker.role} ${worker.slot}`;
    if (timeline.sampled) {
      const [from, width] = [ms(timeline.from_at), 1000 * timeline.bucket_s];
      result.push({ name, kind: 'busy', most: Math.max(1, ...worker.busy), spans: worker.busy.map((mean, at) => ({ begin: from + at * width, end: from + (at + 1) * width, kind: 'busy', mean, text: `${mean.toFixed(1)} rollouts under way` })) });
      continue;
    }
    const own = Array.from({ length: worker.lanes }, (_, lane) => ({ name: lane ? '' : name, kind: 'slot', spans: [] }));
    for (const { lane, rollout } of timeline.rollouts) {
      if (rollout.worker !== worker.id) continue;
      const fate = rollout.state === 'failed' ? 'failed' : DROPPED.includes(rollout.state) ? 'dropped' : rollout.state === 'planned' ? 'sampled' : 'waiting';
      const reward = rollout.reward === null ? '' : `, reward ${+rollout.reward.toPrecision(3)}`;
      own[lane].spans.push({ begin: ms(rollout.begun_at), end: ms(rollout.ended_at), kind: fate, version: rollout.version, text: `rollout, ${rollout.state}${rollout.code ? `: ${rollout.code}` : ''}${reward}${rollout.version === null ? '' : `, weights ${rollout.version}`}`, open: rollout.id && `?id=${rollout.id}` });
    }
    for (const lane of own) lane.spans.sort((a, b) => a.begin - b.begin);
    result.push(...own);
  }
  return result;
}

function arrange() {
  const slots = lanes.length - 1;
  const carpet = slots > MOST_LANES;
  let y = TOP;
  for (const lane of lanes) {
    lane.y = y;
    lane.height = lane.kind === 'trainer' ? 24 : lane.kind === 'busy' ? 40 : carpet ? Math.max(1, Math.floor(CARPET_PX / slots)) : 16;
    lane.gap = lane.kind === 'slot' ? (carpet ? 0 : 2) : 8;
    y += lane.height + lane.gap;
  }
  canvas.dataset.lanes = String(lanes.length);
  canvas.dataset.carpet = String(carpet);
  return y + 6;
}

function prepared(element, height) {
  const [ratio, width] = [devicePixelRatio || 1, element.clientWidth];
  if (element.height !== height * ratio) element.setAttribute('height', String(height * ratio));
  if (element.width !== Math.round(width * ratio)) element.setAttribute('width', String(Math.round(width * ratio)));
  const context = element.getContext('2d');
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  context.font = `11px ${getComputedStyle(document.body).fontFamily}`;
  context.textBaseline = 'middle';
  return [context, width];
}

const at = (time, width) => LABEL + (time - shown[0]) / (shown[1] - shown[0]) * (width - LABEL - RIGHT);
const timeAt = (x, element, [from, to]) => Math.min(to, Math.max(from, from + (x - LABEL) / (element.clientWidth - LABEL - RIGHT) * (to - from)));

function hatch(context, x, y, width, height) {
  context.save();
  context.beginPath();
  context.rect(x, y, width, height);
  context.clip();
  context.strokeStyle = paints['ink-3'];
  context.beginPath();
  for (let k = x - height; k < x + width + height; k += 4) { context.moveTo(k, y + height); context.lineTo(k + height, y); }
  context.stroke();
  context.restore();
}

function paintSpan(context, lane, span, x, width, versions) {
  const [y, height] = [lane.y, lane.height];
  context.globalAlpha = 1;
  if (span.kind === 'idle') {
    context.strokeStyle = paints['ink-3'];
    context.setLineDash([3, 3]);
    context.beginPath();
    context.moveTo(x, y + height - 4.5);
    context.lineTo(x + width, y + height - 4.5);
    context.stroke();
    context.setLineDash([]);
    context.fillStyle = paints['ink-2'];
    if (width > 40) context.fillText(fitted(context, span.label, width - 8), x + 4, y + 9);
  } else if (span.kind === 'busy') {
    context.fillStyle = paints.s1;
    context.globalAlpha = 0.5;
    context.fillRect(x, y + height * (1 - span.mean / lane.most), width + 0.5, height * span.mean / lane.most);
  } else if (span.kind === 'step') {
    context.fillStyle = paints.s1;
    context.globalAlpha = 0.35 + 0.65 * span.busy;
    context.fillRect(x, y + 2, width, height - 4);
    context.globalAlpha = 1;
    context.fillStyle = paints.surface;
    if (width > 48) context.fillText(fitted(context, span.text, width - 8), x + 4, y + height / 2);
  } else if (by === 'weights') {
    context.fillStyle = paints.s1;
    context.globalAlpha = span.version === null ? 0.1 : 0.15 + 0.85 * (span.version - versions[0]) / Math.max(1, versions[1] - versions[0]);
    context.fillRect(x, y, width, height);
  } else if (span.kind === 'dropped') hatch(context, x, y, width, height);
  else {
    context.fillStyle = span.kind === 'failed' ? paints.r0 : paints.s1;
    context.globalAlpha = span.kind === 'failed' ? 1 : span.kind === 'waiting' ? 0.22 : 0.55;
    context.fillRect(x, y, width, height);
  }
  context.globalAlpha = 1;
  if (span === hot) { context.strokeStyle = paints.ink; context.lineWidth = 2; context.strokeRect(x, y + 1, Math.max(2, width), height - 2); context.lineWidth = 1; }
}

function fitted(context, text, width) {
  for (let length = text.length; length > 3; length--) if (context.measureText(text.slice(0, length)).width <= width) return text.slice(0, length);
  return '';
}

function paintAxis(context, width, height) {
  const wanted = (shown[1] - shown[0]) / 8;
  const tick = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 3e4, 6e4, 12e4, 3e5, 6e5, 18e5, 36e5, 72e5, 216e5, 432e5, 864e5].find(size => size >= wanted) || 864e5 * Math.ceil(wanted / 864e5);
  context.textAlign = 'center';
  for (let time = Math.ceil(shown[0] / tick) * tick; time <= shown[1]; time += tick) {
    const x = Math.round(at(time, width)) + 0.5;
    context.strokeStyle = paints.grid;
    context.beginPath();
    context.moveTo(x, TOP - 6);
    context.lineTo(x, height - 6);
    context.stroke();
    context.fillStyle = paints['ink-3'];
    if (x < width - RIGHT) context.fillText(clock(time), x, 8);
  }
}

function paintMarks(context, width, height) {
  for (const mark of answer.marks) {
    if (mark.change !== 'published' && mark.change !== 'checkpoint') continue;
    const time = ms(mark.time_at);
    if (time < shown[0] || time > shown[1]) continue;
    const x = Math.round(at(time, width)) + 0.5;
    context.strokeStyle = paints[mark.change === 'published' ? 's3' : 's4'];
    context.globalAlpha = 0.6;
    context.setLineDash(mark.change === 'published' ? [] : [5, 3]);
    context.beginPath();
    context.moveTo(x, TOP - 6);
    context.lineTo(x, height - 6);
    context.stroke();
  }
  context.setLineDash([]);
  context.globalAlpha = 1;
}

/* The share of the shown time without a span; a busy lane tells its mean in place of it. */
function idleText(lane) {
  if (lane.kind === 'busy') return '';
  let busy = 0;
  for (const span of lane.spans) if (span.kind !== 'idle') busy += (span.busy ?? 1) * Math.max(0, Math.min(shown[1], span.end) - Math.max(shown[0], span.begin));
  return `${Math.max(0, Math.round(100 * (1 - busy / (shown[1] - shown[0]))))} %`;
}

function paint() {
  if (!answer || !shown) return;
  const height = arrange();
  canvas.style.height = `${height}px`;
  const [context, width] = prepared(canvas, height);
  paintAxis(context, width, height);
  const versions = answer.rollouts.map(({ rollout }) => rollout.version).filter(version => version !== null);
  const range = [Math.min(...versions), Math.max(...versions)];
  const tall = lanes.length - 1 <= MOST_LANES;
  for (const lane of lanes) {
    context.textAlign = 'left';
    context.fillStyle = paints.ink;
    if (lane.name) context.fillText(lane.name, 0, lane.y + Math.max(6, lane.height / 2));
    context.fillStyle = paints.sunken;
    context.fillRect(LABEL, lane.y, width - LABEL - RIGHT, lane.height);
    context.save();
    context.beginPath();
    context.rect(LABEL, lane.y, width - LABEL - RIGHT, lane.height);
    context.clip();
    for (const span of lane.spans) {
      if (span.end < shown[0] || span.begin > shown[1]) continue;
      const x = at(span.begin, width);
      paintSpan(context, lane, span, x, Math.max(1, at(span.end, width) - x - (tall ? 0.5 : 0)), range);
    }
    context.restore();
    context.textAlign = 'right';
    context.fillStyle = paints['ink-3'];
    if (tall || lane.kind === 'trainer') context.fillText(idleText(lane), width, lane.y + lane.height / 2);
  }
  context.textAlign = 'right';
  context.fillText('idle', width, 8);
  paintMarks(context, width, height);
  if (drag) { context.fillStyle = paints.accent; context.globalAlpha = 0.15; context.fillRect(Math.min(drag.x, drag.to), TOP - 6, Math.abs(drag.to - drag.x), height); context.globalAlpha = 1; }
  paintOverview();
  canvas.dataset.painted = `${shown[0]} ${shown[1]}`;
}

/* All of the run, the shown time framed: the height is the number of rollouts under way. */
function paintOverview() {
  const [context, width] = prepared(overview, OVERVIEW);
  const [from, to] = [ms(whole.from_at), ms(whole.to_at)];
  const room = width - LABEL - RIGHT;
  const explorers = whole.workers.filter(worker => worker.busy.length);
  const sums = Array.from({ length: explorers[0]?.busy.length ?? 0 }, (_, bucket) => explorers.reduce((sum, worker) => sum + worker.busy[bucket], 0));
  const most = Math.max(1, ...sums);
  context.fillStyle = paints.sunken;
  context.fillRect(LABEL, 0, room, OVERVIEW);
  context.fillStyle = paints.s1;
  context.globalAlpha = 0.45;
  sums.forEach((sum, bucket) => context.fillRect(LABEL + room * bucket / sums.length, OVERVIEW * (1 - sum / most), room / sums.length + 0.5, OVERVIEW * sum / most));
  context.globalAlpha = 1;
  context.fillStyle = paints['ink-3'];
  context.textAlign = 'left';
  context.fillText('slots in use', 0, OVERVIEW / 2);
  context.strokeStyle = paints.accent;
  const x = LABEL + room * (shown[0] - from) / (to - from);
  context.strokeRect(x + 0.5, 0.5, Math.max(3, room * (shown[1] - shown[0]) / (to - from) - 1), OVERVIEW - 1);
}

let reading = false, again = false, timer;
async function read() {
  if (reading) { again = true; return; }
  reading = true;
  again = false;
  const chosen = shown;
  const all = !whole || (chosen && chosen[0] <= ms(whole.from_at) && chosen[1] >= ms(whole.to_at));
  const range = all ? '' : `&from=${new Date(chosen[0]).toISOString()}&to=${new Date(chosen[1]).toISOString()}`;
  try {
    const response = await fetch(`${panel.dataset.timeline}?points=${POINTS}${range}`);
    if (response.ok) {
      const next = await response.json();
      if (all) whole = next;
      if (shown === chosen) {
        answer = next;
        lanes = lanesOf(next);
        hot = null;
        if (all) shown = [ms(next.from_at), ms(next.to_at)];
        readout.textContent = '\u00a0';
        paint();
      }
    } else readout.textContent = (await response.json()).detail;
  } catch { /* the daemon is away: live.js says so, and the next sign reads again */ }
  reading = false;
  if (again) { again = false; later(); }
}
function later(delay = 250) { clearTimeout(timer); timer = setTimeout(read, delay); }

function choose(from, to) {
  if (!whole) return;
  const [first, last] = [ms(whole.from_at), ms(whole.to_at)];
  const length = Math.min(last - first, Math.max(20, to - from));
  from = Math.min(Math.max(first, from), last - length);
  shown = [from, from + length];
  paint();
  later();
}
function all() { if (whole) choose(ms(whole.from_at), ms(whole.to_at)); }

function spanAt(event) {
  const lane = lanes.find(candidate => event.offsetY >= candidate.y && event.offsetY < candidate.y + candidate.height + candidate.gap);
  if (!lane || event.offsetX < LABEL) return null;
  const time = timeAt(event.offsetX, canvas, shown);
  const near = 3 * (shown[1] - shown[0]) / canvas.clientWidth;
  return lane.spans.findLast(span => span.begin - near <= time && span.end + near >= time) || null;
}

function point(span) {
  if (span === hot) return;
  hot = span;
  readout.textContent = span ? `${span.text}, ${lasting(span.end - span.begin)} from ${clock(span.begin)}` : '\u00a0';
  canvas.style.cursor = span?.open ? 'pointer' : 'crosshair';
  paint();
}
function open(span) { if (span?.open) location.assign(panel.dataset.rollouts + span.open); }

for (const element of [canvas, overview]) {
  element.addEventListener('pointerdown', event => { if (shown && event.offsetX >= LABEL) { drag = { x: event.offsetX, to: event.offsetX, element }; element.setPointerCapture(event.pointerId); } });
  element.addEventListener('pointermove', event => {
    if (drag) { drag.to = event.offsetX; paint(); } else if (element === canvas && shown) point(spanAt(event));
  });
  element.addEventListener('pointerup', event => {
    if (!drag) return;
    const { x, to } = drag;
    drag = null;
    const range = element === canvas ? shown : [ms(whole.from_at), ms(whole.to_at)];
    if (Math.abs(to - x) > 4) choose(timeAt(Math.min(x, to), element, range), timeAt(Math.max(x, to), element, range));
    else if (element === canvas) open(spanAt(event));
    paint();
  });
  element.addEventListener('dblclick', all);
}
canvas.addEventListener('pointerleave', () => { if (!drag) point(null); });
canvas.addEventListener('keydown', event => {
  if (!shown) return;
  const length = shown[1] - shown[0];
  const sideways = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (sideways && event.shiftKey) step(sideways);
  else if (sideways) choose(shown[0] + sideways * length / 5, shown[1] + sideways * length / 5);
  else if (event.key === 'ArrowUp' || event.key === 'ArrowDown') lower(event.key === 'ArrowUp' ? -1 : 1);
  else if (event.key === '+' || event.key === '=') choose(shown[0] + length / 4, shown[1] - length / 4);
  else if (event.key === '-') choose(shown[0] - length / 2, shown[1] + length / 2);
  else if (event.key === '0') all();
  else if (event.key === 'Enter') open(hot);
  else return;
  event.preventDefault();
  event.stopPropagation();
});

function laneOfHot() { return Math.max(0, lanes.findIndex(lane => lane.spans.includes(hot))); }
function step(by_) {
  const spans = lanes[laneOfHot()].spans;
  const next = spans[hot ? spans.indexOf(hot) + by_ : 0];
  if (next) point(next);
}
function lower(by_) {
  const lane = lanes[Math.min(lanes.length - 1, Math.max(0, laneOfHot() + by_))];
  const from = hot ? hot.begin : shown[0];
  const next = lane?.spans.find(span => span.end >= from) || lane?.spans.at(-1);
  if (next) point(next);
}

document.getElementById('all').addEventListener('click', all);
for (const button of panel.querySelectorAll('[data-colour]')) button.addEventListener('click', () => {
  by = button.dataset.colour;
  for (const sibling of panel.querySelectorAll('[data-colour]')) sibling.setAttribute('aria-pressed', String(sibling === button));
  paint();
});
function repaint() { colours(); paint(); }
let resizing;
addEventListener('resize', () => { clearTimeout(resizing); resizing = setTimeout(paint, 120); });
addEventListener('theme', repaint);
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', repaint);
// A chosen time is past, and stays; all of the run goes on.
changes.addEventListener('changed', () => { if (!whole || (shown[0] <= ms(whole.from_at) && shown[1] >= ms(whole.to_at))) later(whole ? 1000 : 0); });
colours();
read();
