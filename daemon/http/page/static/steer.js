/* Commands to a run, by the routes of the API alone: a dry run says the consequence, the button sends the same body.
 * The request id is made when the panel opens and kept with the words typed, in this browser, until there is a
 * receipt: a double click, a second tab, a reload or a restart of the daemon in between cause one effect. */
import { changes } from './live.js';
import { pythonLine, shell } from './quote.js';

const panel = document.getElementById('steer');
const form = document.getElementById('steer-form');
const confirm = document.getElementById('steer-confirm');
const consequence = document.getElementById('consequence');
const warnings = document.getElementById('steer-warnings');
const receipt = document.getElementById('receipt');
const AGAIN_MS = 2000;
const DRAFT_MS = 24 * 3600 * 1000;
const REUSED = 'RFTD-CON-002';
let target = null;
let act = null;
let key = '';
let wait = 0;
let asked = 0;
let sending = false;
let opener = '';

const lines = text => text.split('\n').map(line => line.trim()).filter(Boolean);
const pairs = text => Object.fromEntries(lines(text).map(line => [line.split('=')[0].trim(), line.slice(line.indexOf('=') + 1).trim()]));
const reason = field => (field.reason ? { reason: field.reason } : {});
const run = () => target.run;
const options = (name, texts) => texts.map(text => ` ${name} ${shell(text)}`).join('');
const because = field => (field.reason ? options('--reason', [field.reason]) : '');
const transition = verb => ({ path: () => `/v1/experiments/${run()}/${verb}`, body: reason, cli: field => `rftd ${verb} ${run()}${because(field)}`, python: field => [verb, [], reason(field)] });
const annotation = (body, cli, args) => ({ path: () => `/v1/experiments/${run()}/annotate`, body, cli: field => `rftd note ${run()}${cli(field)}`, python: field => ['note', ...args(field)] });
const letter = (verb, body) => ({ path: () => `/v1/dead-letters/${verb}`, body, cli: field => `rftd dlq ${verb} ${shell(target.letter)}${body(field).reason ? options('--reason', [body(field).reason]) : ''}`, python: null });

function changed(wanted) {
  const before = JSON.parse(target.labels);
  const gone = Object.keys(before).filter(name => !(name in wanted)).map(name => `${name}=`);
  return [...Object.entries(wanted).filter(([name, text]) => before[name] !== text).map(([name, text]) => `${name}=${text}`), ...gone];
}

/* The value of an override as Python: YAML's plain forms that are JSON too, else a text. */
function literal(text) {
  try { return JSON.parse(text); } catch { return text; }
}

const ACTS = {
  pause: transition('pause'),
  resume: transition('resume'),
  cancel: transition('cancel'),
  prioritize: { path: () => `/v1/experiments/${run()}/prioritize`, body: field => ({ priority: Number(field.priority), ...reason(field) }), cli: field => `rftd prioritize ${run()} ${Number(field.priority)}${because(field)}`, python: field => ['prioritize', [Number(field.priority)], reason(field)] },
  fork: {
    path: () => `/v1/experiments/${run()}/fork`,
    body: field => ({ at_step: Number(field.at_step), set: lines(field.set), ...(field.name ? { name: field.name } : {}) }),
    cli: field => `rftd fork ${run()} --at-step ${Number(field.at_step)}${options('-s', lines(field.set))}${field.name ? options('--name', [field.name]) : ''}`,
    python: field => ['fork', [Number(field.at_step)], field.name ? { name: field.name } : {}, Object.fromEntries(lines(field.set).map(line => [line.split('=')[0], literal(line.slice(line.indexOf('=') + 1))]))],
  },
  note: annotation(field => ({ note: field.note }), field => ` -- ${shell(field.note)}`, field => [[field.note], {}]),
  labels: annotation(field => ({ labels: pairs(field.labels) }), field => options('--label', changed(pairs(field.labels))), field => [[], { labels: pairs(field.labels) }]),
  star: annotation(() => ({ star: true }), () => ' --star', () => [[], { star: true }]),
  unstar: annotation(() => ({ star: false }), () => ' --no-star', () => [[], { star: false }]),
  submit: { path: () => '/v1/experiments', body: () => ({ config: JSON.parse(target.config) }), cli: () => `rftd submit ${shell(`${target.name || 'mine'}.yaml`)}`, python: null },
  retry: letter('retry', field => ({ id: target.letter, ...reason(field) })),
  drop: letter('drop', field => ({ id: target.letter, reason: field.why })),
};
const TITLES = { submit: 'Submit', star: 'Star', unstar: 'Remove the star', retry: 'Retry', drop: 'Drop', prioritize: 'Prioritize', fork: 'Fork', note: 'Note', labels: 'Labels', pause: 'Pause', resume: 'Resume', cancel: 'Cancel' };

const place = () => `rftd-steer/${target.run || target.letter || target.place}/${act}`;
const typed = () => Object.fromEntries(new FormData(form));

function draft() {
  try {
    const kept = JSON.parse(localStorage.getItem(place()));
    return kept && Date.now() - kept.at < DRAFT_MS ? kept : null;
  } catch { return null; }
}

function keep(isSent) {
  const sent = isSent || draft()?.sent || false;
  try { localStorage.setItem(place(), JSON.stringify({ key, fields: typed(), sent, at: Date.now() })); } catch { /* no storage in a private window */ }
}

function forget() {
  try { localStorage.removeItem(place()); } catch { /* as above */ }
}

/* Random, and not `randomUUID`: over plain HTTP from another machine browsers do not have it. */
function newKey() {
  return [...crypto.getRandomValues(new Uint8Array(16))].map(byte => byte.toString(16).padStart(2, '0')).join('');
}

function fill(kept) {
  form.reset();
  const defaults = { at_step: target.fork ?? target.step, priority: target.priority, labels: Object.entries(JSON.parse(target.labels || '{}')).map(pair => pair.join('=')).join('\n') };
  for (const [name, text] of Object.entries({ ...defaults, ...kept?.fields, ...(target.fork === undefined ? {} : { at_step: target.fork }) })) {
    if (form.elements[name] && text !== undefined) form.elements[name].value = text;
  }
  for (const label of form.querySelectorAll('label')) {
    label.hidden = !label.dataset.for.split(' ').includes(act);
    label.firstElementChild.disabled = label.hidden;
  }
}

function open(button, wanted, from) {
  target = { ...button.dataset, fork: from };
  opener = button.id;
  act = wanted;
  if (act === 'star' && button.getAttribute('aria-pressed') === 'true') act = 'unstar';
  const kept = draft();
  key = kept?.key ?? newKey();
  fill(kept);
  keep(false);
  document.getElementById('steer-title').textContent = `${TITLES[act]} ${target.name}`;
  const acts = (target.acts ?? '').split(' ').filter(Boolean);
  document.getElementById('steer-acts').replaceChildren(...acts.map(name => {
    const tab = document.createElement('button');
    tab.type = 'button';
    tab.textContent = TITLES[name];
    tab.setAttribute('aria-pressed', String(name === act));
    tab.addEventListener('click', () => open(button, name));
    return tab;
  }));
  receipt.textContent = kept?.sent ? 'Sent before, without an answer: sending it again has no second effect.' : '';
  confirm.textContent = TITLES[act];
  form.hidden = false;
  panel.hidden = false;
  panel.scrollIntoView({ block: 'nearest' });
  (form.querySelector('label:not([hidden]) > :first-child') ?? confirm).focus();
  judge();
}

function close() {
  panel.hidden = true;
  clearTimeout(wait);
  asked++;
  document.getElementById(opener)?.focus();
  target = null;
}

function words() {
  document.getElementById('steer-cli').textContent = ACTS[act].cli(typed());
  const call = ACTS[act].python;
  document.getElementById('steer-python').parentElement.hidden = call === null;
  if (call) document.getElementById('steer-python').textContent = pythonLine(target.run, ...call(typed()));
}

/* A command sent before may be recorded, and then refused as a further one: with its request id it may be sent again. */
function say(text, isRefused, mayRepeat = false) {
  consequence.textContent = text;
  consequence.classList.toggle('refused', isRefused);
  confirm.disabled = (isRefused && !mayRepeat) || sending;
}

function refused(problem) {
  const errors = problem.errors?.length ? problem.errors : [{ what: problem.detail, fix: problem.fix, field: problem.field }];
  return errors.map(error => [error.field && problem.errors?.length ? `${error.field}: ` : '', error.what, error.fix ? `; fix: ${error.fix}` : ''].join('')).join('\n');
}

async function post(query, headers) {
  return fetch(`${ACTS[act].path()}${query}`, { method: 'POST', headers: { 'Content-Type': 'application/json', ...headers }, body: JSON.stringify(ACTS[act].body(typed())) });
}

/* The consequence as of now, or the refusal that a command would get; asked again while nobody answers. */
async function judge() {
  clearTimeout(wait);
  words();
  keep(false);
  if (!form.checkValidity()) { say('Fill in the field above.', true); return; }
  const number = ++asked;
  try {
    const answer = await post('?dry_run=true', {});
    if (number !== asked || panel.hidden) return;
    if (answer.status === 401) {
      say('This browser is signed out: type rftd open. What you typed is kept.', true);
      wait = setTimeout(judge, AGAIN_MS);
      return;
    }
    const body = await answer.json();
    if (!answer.ok) { warn([]); say(refused(body), true, draft()?.sent); return; }
    warn(body.warnings);
    say(`${body.name}: ${body.sentence}.`, false);
  } catch {
    if (number !== asked || panel.hidden) return;
    say('The daemon does not answer. What you typed is kept.', true);
    wait = setTimeout(judge, AGAIN_MS);
  }
}

function warn(texts) {
  warnings.replaceChildren(...texts.map(text => Object.assign(document.createElement('li'), { textContent: text })));
  warnings.hidden = !texts.length;
}

function link(text, path) {
  const anchor = document.createElement('a');
  anchor.className = 'link';
  anchor.href = path;
  anchor.textContent = text;
  return anchor;
}

function show(body) {
  forget();
  form.hidden = true;
  const title = TITLES[act];
  receipt.replaceChildren(`${title} ${target.name}: recorded${body.event ? ` as event ${body.event}` : ''}${body.position ? ` at ${body.position}` : ''}. `);
  if (act === 'fork' || act === 'submit') {
    // A new run is in the tables a little later than in the log.
    const after = body.position ? `?after=${encodeURIComponent(body.position)}` : '';
    receipt.append(link(`Open ${body.name}`, `/runs/${body.id}${after}`));
  }
  for (const text of body.warnings ?? []) receipt.append(document.createElement('br'), `warning: ${text}`);
  document.getElementById('steer-close').focus();
  changes.dispatchEvent(new MessageEvent('changed', { data: 'null' }));
}

async function send() {
  if (sending || confirm.disabled) return;
  sending = true;
  confirm.disabled = true;
  keep(true);
  try {
    const answer = await post('', { 'Idempotency-Key': key });
    const body = await answer.json();
    sending = false;
    if (answer.ok) { show(body); return; }
    if (answer.status === 401) {
      receipt.textContent = 'This browser is signed out, and nothing was recorded: type rftd open, and send again. What you typed is kept.';
      judge();
      return;
    }
    if (body.code === REUSED) {
      key = newKey();
      forget();
      receipt.textContent = `Sent already from another tab, with other words: ${body.detail}. What you see now would be a further command.`;
      judge();
      return;
    }
    if (answer.status < 500) forget();
    say(refused(body), true);
    receipt.textContent = '';
  } catch {
    sending = false;
    receipt.textContent = 'No answer: the command may be recorded or not. Send it again: with its request id it has one effect.';
    confirm.textContent = 'Send again';
    judge();
  }
}

form.addEventListener('submit', event => { event.preventDefault(); send(); });
form.addEventListener('input', () => {
  words();
  confirm.disabled = true;
  keep(false);
  clearTimeout(wait);
  wait = setTimeout(judge, 250);
});
document.getElementById('steer-close').addEventListener('click', close);
document.addEventListener('click', event => {
  const copied = event.target.closest('[data-copy]');
  if (copied) navigator.clipboard?.writeText(document.getElementById(copied.dataset.copy).textContent);
  const button = event.target.closest('[data-act]');
  if (button && button.getAttribute('aria-disabled') !== 'true') open(button, button.dataset.act);
});
const KEYS = { p: ['pause', 'resume'], f: ['fork'], n: ['note'] };
document.addEventListener('keydown', event => {
  if (event.key === 'Escape' && !panel.hidden) { close(); return; }
  if (event.target.matches('input, select, textarea') || event.metaKey || event.ctrlKey || event.altKey) return;
  const names = KEYS[event.key] ?? [];
  const button = names.map(name => document.getElementById(`act-${name}`)).find(Boolean);
  if (button && button.getAttribute('aria-disabled') !== 'true') { event.preventDefault(); open(button, button.dataset.act); }
});
/* A point of a curve, and links to `?fork=STEP`. */
function fork(step) {
  const button = document.getElementById('act-fork');
  if (button && button.getAttribute('aria-disabled') !== 'true') open(button, 'fork', step);
}
document.addEventListener('fork', event => fork(event.detail));
const wantedStep = new URLSearchParams(location.search).get('fork');
if (wantedStep !== null && /^\d+$/.test(wantedStep)) fork(wantedStep);
let looked = 0;
changes.addEventListener('changed', () => {
  if (panel.hidden || form.hidden || sending || Date.now() - looked < AGAIN_MS) return;
  looked = Date.now();
  judge();
});
