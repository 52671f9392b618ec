/* Curves of a run by uPlot, from the daemon's thinned series: a centred mean, the raw line behind it, and bands. */
import { changes } from './live.js';

const panel = document.getElementById('curves');
/* Over several runs each chart has a line a run; charts with a line for each part are those of one run. */
const several = Number(panel.dataset.runs) > 1;
const charts = [...panel.querySelectorAll('.chart')].filter(chart => !several || !isSplit(chart));
const list = document.getElementById('metrics');
const smooth = document.getElementById('smooth');
const POINTS = 240;
const MOST_PARTS = 5;
/* Steps after which a figure without a record is named in a line, and its chart is left out. */
const EARLY_STEPS = 3;
let series = null;
let reading = false;
let again = false;

function isSplit(chart) { return chart.dataset.split === '1' || chart.dataset.stack === '1'; }

/* A colour of the style sheet as the canvas needs it, in the present theme. */
function colour(name) {
  const probe = document.body.appendChild(document.createElement('i'));
  probe.style.color = `var(--${name})`;
  const text = getComputedStyle(probe).color;
  probe.remove();
  return text;
}

/* A mean around each point: one of earlier points alone would show learning late. */
function centred(line, radius) {
  if (!radius) return line;
  return line.map((y, at) => {
    if (y === null) return null;
    let sum = 0, weights = 0;
    for (let k = Math.max(0, at - 3 * radius); k <= Math.min(line.length - 1, at + 3 * radius); k++) {
      if (line[k] === null) continue;
      const weight = Math.exp(-((k - at) ** 2) / (2 * radius * radius));
      sum += weight * line[k];
      weights += weight;
    }
    return sum / weights;
  });
}

/* On a logarithmic scale the mean is one of logarithms: a single spike would else hide decades. */
function smoothed(chart, line) {
  const radius = Number(smooth.value);
  if (chart.dataset.log !== '1') return centred(line, radius);
  return centred(line.map(y => (y === null ? null : Math.log(y))), radius).map(y => (y === null ? null : Math.exp(y)));
}

function figure(y) {
  if (y === null || y === undefined) return '–';
  const size = Math.abs(y);
  const text = size && size < 1e-3 ? y.toExponential(1) : size >= 1000 ? Math.round(y).toLocaleString('en') : String(+y.toPrecision(3));
  return text.replace('-', '−');
}

function shown(chart, line) {
  const log = chart.dataset.log === '1';
  // A logarithmic scale has no place for zero.
  const usable = log ? column => column.map(y => (y !== null && y > 0 ? y : null)) : column => column;
  const band = chart.dataset.band === 'quantiles' ? [line.p10, line.p90] : [line.min, line.max];
  const mean = usable(line.mean);
  return [series.at, usable(band[0]), usable(band[1]), mean, smoothed(chart, mean)];
}

/* The figures behind a chart: its own, or one for each part. */
function figuresOf(chart) { return chart.parts ?? (chart.dataset.metric ? [chart.dataset.metric] : []); }

/* The lines of a chart with many: one for each run, or for each part; null for a chart of one line. */
function manyOf(chart) {
  const names = figuresOf(chart);
  if (several) return series.runs.map(({ id, name }) => ({ name, ...series.lines.find(line => line.run === id && line.metric === names[0]) })).filter(line => line.mean);
  if (!chart.parts) return null;
  const named = names.map(metric => series.lines.find(line => line.metric === metric)).filter(Boolean);
  return named.map(line => ({ ...line, name: line.metric.slice(chart.dataset.metrics.length).replace(/\/mean$/, '') }));
}

/* Names of lines with the colour and the figure of each, in place of a hint. */
function legend(chart, lines) {
  const texts = lines.map(() => new Text());
  const entries = lines.map((line, at) => {
    const entry = document.createElement('span');
    const swatch = document.createElement('i');
    swatch.className = `swatch c${at + 1}`;
    const name = document.createElement('bdi');
    name.className = 'cut';
    name.textContent = line.name;
    entry.append(swatch, name, texts[at]);
    return entry;
  });
  chart.querySelector('.hint').classList.add('parts');
  chart.querySelector('.hint').replaceChildren(...entries);
  chart.legend = at => lines.forEach((line, number) => { texts[number].data = figure(at === null || at === undefined ? line.mean.findLast(y => y !== null) : line.mean[at]); });
  chart.legend(chart.plot?.cursor.idx);
}

/* Columns of the lines; stacked ones are sums, the highest first: a lower one is filled over it. */
function columnsOf(chart, lines) {
  if (chart.dataset.stack !== '1') {
    const usable = chart.dataset.log === '1' ? column => column.map(y => (y > 0 ? y : null)) : column => column;
    return [series.at, ...lines.map(line => smoothed(chart, usable(line.mean)))];
  }
  let below = series.at.map(() => 0);
  const sums = lines.map(line => below = smoothed(chart, line.mean).map((y, at) => (y === null ? null : y + (below[at] ?? 0))));
  return [series.at, ...sums.toReversed()];
}

function drawMarks(plot) {
  const context = plot.ctx;
  context.save();
  context.strokeStyle = colour('line-2');
  context.setLineDash([3 * devicePixelRatio, 3 * devicePixelRatio]);
  for (const mark of series.marks) {
    if (mark.change === 'published' || mark.change === 'checkpoint' || mark.run !== series.runs[0].id) continue;
    const x = plot.valToPos(mark.at, 'x', true);
    if (x < plot.bbox.left || x > plot.bbox.left + plot.bbox.width) continue;
    context.beginPath();
    context.moveTo(x, plot.bbox.top);
    context.lineTo(x, plot.bbox.top + plot.bbox.height);
    context.stroke();
  }
  context.restore();
}

/* Room above and below; a flat line keeps a scale on which it is flat. */
function range(low, high) {
  if (low === null) return [0, 1];
  // Means of equal figures differ by rounding: drawn to scale, that would be a fall.
  const room = high - low > Math.abs(high) * 1e-9 ? (high - low) * 0.06 : Math.abs(low) * 0.1 || 1;
  return [low >= 0 ? Math.max(0, low - room) : low - room, high + room];
}

/* Powers of ten alone, at most five: a line for each digit of eight decades is a grey field. */
function decades(low, high) {
  const first = Math.ceil(Math.log10(low) - 1e-9), last = Math.floor(Math.log10(high) + 1e-9), every = Math.max(1, Math.ceil((last - first + 1) / 5));
  return Array.from({ length: Math.max(0, Math.floor((last - first) / every) + 1) }, (_, number) => 10 ** (first + number * every));
}

function options(chart, box, many) {
  const axis = { stroke: colour('ink-3'), font: `10.5px ${getComputedStyle(document.body).fontFamily}`, ticks: { show: false }, gap: 4 };
  const stroke = colour(chart.dataset.colour);
  const raw = { stroke, width: 1, alpha: Number(smooth.value) ? 0.25 : 0, points: { show: false } };
  const edge = { stroke: 'transparent', points: { show: false } };
  const value = chart.querySelector('.v');
  const isScore = chart.dataset.metric?.startsWith('held-out/');
  const isLog = chart.dataset.log === '1', isStacked = chart.dataset.stack === '1';
  const lines = many?.map((_, at) => {
    const ink = colour(`s${isStacked ? many.length - at : at + 1}`);
    return { stroke: ink, width: isStacked ? 0 : 1.6, spanGaps: true, points: { show: Boolean(isScore), size: 5, fill: ink }, ...(isStacked ? { fill: ink } : {}) };
  });
  return {
    width: box.clientWidth, height: 118, padding: [10, 14, 0, 0], legend: { show: false },
    cursor: { sync: { key: 'run' }, y: false, drag: { x: true, y: false } },
    scales: { x: { time: false }, y: isLog ? { distr: 3 } : { range: isStacked ? [0, 1] : (_, low, high) => range(low, high) } },
    axes: [{ ...axis, grid: { show: false }, size: 20, space: 64, values: (_, ticks) => ticks.map(tick => (Number.isInteger(tick) ? figure(tick) : '')) },
      { ...axis, ...(isLog ? { splits: (_, __, low, high) => decades(low, high), filter: (_, splits) => splits } : {}), grid: { stroke: colour('grid'), width: 1 }, size: 46, space: 30, values: (_, ticks) => ticks.map(tick => (tick === null ? '' : figure(tick))) }],
    series: lines ? [{}, ...lines] : [{}, edge, edge, raw, { stroke, width: 1.5, spanGaps: true, points: { show: isScore, size: 5, fill: stroke } }],
    bands: lines || chart.dataset.band === 'none' ? [] : [{ series: [2, 1], fill: colour('band') }],
    hooks: { draw: [drawMarks], setScale: [(plot, key) => {
      // A zoom outlasts new points; a double click, which shows all, ends it.
      const steps = plot.data[0];
      if (key === 'x' && steps.length > 1) plot.zoomed = plot.scales.x.min > steps[0] || plot.scales.x.max < steps.at(-1);
    }], setCursor: [plot => {
      const at = plot.cursor.idx;
      if (lines) {
        chart.legend?.(at);
        value.textContent = at === null || at === undefined ? '' : `at ${figure(plot.data[0][at])}`;
        return;
      }
      const last = plot.data[3].findLast(y => y !== null);
      value.textContent = at === null || at === undefined ? figure(last) : `${figure(plot.data[3][at])} at ${figure(plot.data[0][at])}`;
    }] },
  };
}

function draw(chart) {
  const many = manyOf(chart);
  const line = many ? many[0] : series.lines.find(candidate => candidate.metric === chart.dataset.metric);
  const box = chart.querySelector('.plot');
  if (!line || !series.at.length) return;
  const broken = many ? 0 : line.nonfinite.reduce((sum, count) => sum + count, 0);
  const hint = chart.querySelector('.hint');
  chart.dataset.hint ??= hint.textContent;
  if (!many) hint.textContent = broken ? `NaN or infinite in ${figure(broken)} steps, which are left out` : chart.dataset.hint;
  if (broken && line.mean.every(y => y === null)) {
    box.textContent = '';
    box.append(Object.assign(document.createElement('div'), { className: 'none', textContent: 'no finite number' }));
    return;
  }
  const data = many ? columnsOf(chart, many) : shown(chart, line);
  if (chart.plot) chart.plot.setData(data, chart.plot.zoomed !== true);
  else {
    box.textContent = '';
    chart.plot = new uPlot(options(chart, box, many), data, box);
    // A double click shows all steps again, and begins as a click: a click alone is one after a moment.
    let opening;
    chart.plot.over.addEventListener('click', event => {
      const at = chart.plot.cursor.idx;
      clearTimeout(opening);
      if (at === null || at === undefined || chart.plot.select.width > 0) return;
      const step = Math.round(series.at[at]);
      if (event.shiftKey) { document.dispatchEvent(new CustomEvent('fork', { detail: String(step) })); return; }
      const address = `${panel.dataset.rollouts}${step}`;
      opening = setTimeout(() => location.assign(address), 300);
    });
    chart.plot.over.addEventListener('dblclick', () => clearTimeout(opening));
  }
  const title = chart.querySelector('h3').firstChild.textContent.trim();
  if (many) {
    chart.querySelector('.v').textContent = '';
    legend(chart, many);
    box.setAttribute('aria-label', `${title} by step`);
  } else {
    const newest = figure(line.mean.findLast(y => y !== null));
    chart.querySelector('.v').textContent = newest;
    box.setAttribute('aria-label', `${title} by step, now ${newest}`);
  }
  chart.dataset.points = String(series.at.at(-1));
}

for (const chart of panel.querySelectorAll('.chart')) chart.hidden = !charts.includes(chart);

function redraw() {
  if (!series) return;
  for (const chart of charts.filter(chart => figuresOf(chart).length)) {
    const { min, max } = chart.plot?.zoomed ? chart.plot.scales.x : {};
    chart.plot?.destroy();
    chart.plot = null;
    draw(chart);
    if (min !== undefined) chart.plot?.setScale('x', { min, max });
  }
}

/* The first figure on offer of each chart: many are recorded from the first step on only. */
function choose(offered) {
  let news = false;
  for (const chart of charts) {
    if (figuresOf(chart).length) continue;
    if (isSplit(chart)) {
      const end = chart.dataset.stack ? '' : '/mean';
      const parts = offered.filter(full => full.startsWith(chart.dataset.metrics) && full.endsWith(end)).slice(0, MOST_PARTS);
      if (parts.length) { chart.parts = parts; news = true; }
      continue;
    }
    for (const name of chart.dataset.metrics.split('|')) {
      const metric = name.endsWith('/') ? offered.find(full => full.startsWith(name) && !full.slice(name.length).includes('/')) : offered.find(full => full === name);
      if (metric) { chart.dataset.metric = metric; news = true; break; }
    }
  }
  if (list.childElementCount !== offered.length) list.replaceChildren(...offered.map(name => new Option(name, name)));
  return news;
}

/* Charts without a record would be mostly empty boxes: after the first steps their names stand in one line. */
function leaveOut() {
  if (!series.runs.some(run => run.last_step >= EARLY_STEPS)) return;
  const empty = charts.filter(chart => !figuresOf(chart).length);
  for (const chart of charts) chart.hidden = empty.includes(chart);
  const line = document.getElementById('unrecorded');
  line.hidden = !empty.length;
  line.textContent = `Not recorded: ${empty.map(chart => chart.querySelector('h3').firstChild.textContent.trim()).join(', ')}.`;
}

/* One reading at a time; signs that come meanwhile are answered by one more. */
async function read() {
  if (reading) { again = true; return; }
  reading = true;
  try {
    const drawn = charts.filter(chart => figuresOf(chart).length);
    const query = drawn.flatMap(figuresOf).map(name => `&metrics=${encodeURIComponent(name)}`).join('');
    const answer = await fetch(`${panel.dataset.series}&points=${POINTS}${query}`);
    if (answer.ok) {
      series = await answer.json();
      again ||= choose([...new Set(series.runs.flatMap(run => run.metrics))]);
      for (const chart of drawn) draw(chart);
      for (const chart of charts.filter(chart => !figuresOf(chart).length)) {
        const box = chart.querySelector('.none');
        if (box) box.textContent = box.dataset.empty;
      }
      leaveOut();
    }
  } catch { /* the daemon is away: live.js says so, and the next sign reads again */ }
  reading = false;
  if (again) { again = false; setTimeout(read, 250); }
}

let resizing;
addEventListener('resize', () => { clearTimeout(resizing); resizing = setTimeout(redraw, 120); });
addEventListener('theme', redraw);
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', redraw);
smooth.addEventListener('change', redraw);
changes.addEventListener('changed', read);
read();
