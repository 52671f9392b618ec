/* The studio: fields become changes `path=YAML` to a beginning; the daemon applies and checks them as a submission,
 * and answers file, errors, cost and the arguments of the chosen parts. Beginning and changes stay in this browser. */
const PLACE = 'rftd-studio';
const start = document.getElementById('start');
const form = document.getElementById('form');
const pasted = document.getElementById('pasted');
const submit = document.getElementById('submit');
const verdict = document.getElementById('verdict');
const yaml = document.getElementById('yaml');
let beginning = {};
let changes = {};
let first = null;
let view = null;
let wait = 0;
let asked = 0;

const byId = id => document.getElementById(id);
const make = (tag, text, className = '') => Object.assign(document.createElement(tag), { textContent: text, className });

function at(tree, path) {
  let node = tree;
  for (const key of path.split('.')) node = node && typeof node === 'object' ? node[key] : undefined;
  return node;
}

function shown(leaf) {
  if (leaf === undefined || leaf === null) return '';
  return typeof leaf === 'object' ? JSON.stringify(leaf) : String(leaf);
}

/* A text as YAML: quoted, unless it stands for a number, a flag or a structure. */
function asYaml(kind, text) { return kind === 'text' || kind === 'words' ? JSON.stringify(text) : text; }

/* In this tab first: two tabs with two drafts must not overwrite each other. The other storage outlasts the tab. */
function keep() {
  const text = JSON.stringify({ beginning, changes });
  for (const storage of ['sessionStorage', 'localStorage']) try { window[storage].setItem(PLACE, text); } catch { /* none in a private window, or full */ }
}

function kept() {
  try { return JSON.parse(sessionStorage.getItem(PLACE) ?? localStorage.getItem(PLACE)); } catch { return null; }
}

async function ask(edits) {
  const set = [], unset = [];
  for (const [path, edit] of Object.entries(edits)) {
    if (edit.text === '') unset.push(path); else set.push(`${path}=${asYaml(edit.kind, edit.text)}`);
  }
  return fetch('/v1/experiments/draft', { method: 'POST', headers: { 'Content-Type': 'application/json' }, body: JSON.stringify({ ...beginning, set, unset }) });
}

async function check() {
  clearTimeout(wait);
  keep();
  const number = ++asked;
  try {
    const answer = await ask(changes);
    if (number !== asked) return;
    if (answer.status === 401) { later('This browser is signed out: type rftd open. What you typed is kept.'); return; }
    const body = await answer.json();
    if (!answer.ok) { verdict.textContent = `${body.detail}${body.fix ? `; fix: ${body.fix}` : ''}`; mayNot(); return; }
    if (first === null) first = Object.keys(changes).length ? (await (await ask({})).json()).text : body.text;
    view = body;
    show();
  } catch {
    if (number === asked) later('The daemon does not answer. What you typed is kept.');
  }
}

function later(words) {
  verdict.textContent = words;
  mayNot();
  wait = setTimeout(check, 2000);
}

function mayNot() {
  submit.setAttribute('aria-disabled', 'true');
  document.dispatchEvent(new CustomEvent('drafted', { detail: null }));
}

function show() {
  renderArguments();
  for (const field of document.querySelectorAll('.field')) fill(field);
  const faults = view.errors;
  const lost = strays(faults);
  const orphans = faults.filter(fault => !mark(fault) && !lost.has(fault.field));
  byId('errors').replaceChildren(...orphans.map(fault => make('li', words(fault, true))), ...[...lost].map(([path, fault]) => stray(path, fault)));
  const marked = new Set(faults.map(fault => fault.field).filter(Boolean));
  verdict.textContent = faults.length ? `${faults.length} ${faults.length === 1 ? 'field needs' : 'errors need'} attention${marked.size ? `: ${[...marked].slice(0, 4).join(', ')}` : ''}.` : `The daemon would accept it; folder: ${view.report.job_dir}`;
  byId('warnings').replaceChildren(...(view.report?.warnings ?? []).map(text => make('li', text)));
  amounts();
  file();
  submit.dataset.config = JSON.stringify(view.config);
  submit.dataset.name = shown(at(view.config, 'name')) || 'mine';
  submit.setAttribute('aria-disabled', String(faults.length > 0 || submit.dataset.refused === '1'));
  document.dispatchEvent(new CustomEvent('drafted', { detail: view }));
}

/* The fault of each refused change from a form of another release whose field this form lacks, by path: only a button
 * beside the fault can remove such a change. */
function strays(faults) {
  const fields = new Set([...document.querySelectorAll('.field')].map(field => field.dataset.path));
  const paths = Object.keys(changes).filter(path => !fields.has(path));
  return new Map(paths.map(path => [path, faults.find(fault => fault.field && `${path}.`.startsWith(`${fault.field}.`))]).filter(([, fault]) => fault));
}

function stray(path, fault) {
  const item = make('li', `${words(fault, true)}; this form has no such field; typed was: ${changes[path].text} `);
  const button = make('button', 'Remove this change', 'btn sm');
  button.type = 'button';
  button.addEventListener('click', () => { delete changes[path]; check(); });
  item.append(button);
  return item;
}

function words(fault, isNamed) { return `${isNamed && fault.field ? `${fault.field}: ` : ''}${fault.what}${fault.fix ? `; fix: ${fault.fix}` : ''}`; }

/* The fault at its field, or at the nearest one above it; false without any. */
function mark(fault) {
  let path = (fault.field ?? '').replaceAll(/\[\d+\].*$/g, '');
  const fields = [...document.querySelectorAll('.field')];
  while (path) {
    const places = fields.filter(field => field.dataset.path === path);
    for (const field of places) {
      const line = field.querySelector('.fault');
      line.textContent = [line.textContent, words(fault, path !== fault.field)].filter(Boolean).join('\n');
      line.hidden = false;
      field.classList.add('wrong');
      field.querySelector('input, select, textarea').setAttribute('aria-invalid', 'true');
      field.closest('details')?.setAttribute('open', '');
    }
    if (places.length) return places.some(field => field.offsetParent !== null);
    path = path.includes('.') ? path.slice(0, path.lastIndexOf('.')) : '';
  }
  return false;
}

function fill(field) {
  const input = field.querySelector('input, select, textarea');
  const line = field.querySelector('.fault');
  const edit = changes[field.dataset.path];
  line.textContent = '';
  line.hidden = true;
  field.classList.remove('wrong');
  field.classList.toggle('changed', edit !== undefined);
  input.removeAttribute('aria-invalid');
  input.setAttribute('aria-describedby', line.id);
  if (input === document.activeElement) return;
  const text = edit ? edit.text : shown(at(view.config, field.dataset.path));
  if (input.tagName === 'SELECT' && text && ![...input.options].some(option => option.value === text)) input.append(new Option(text, text));
  input.value = text;
}

/* Arguments of parts: their fields come with each answer, so that a new part or a new argument needs no change here. */
function renderArguments() {
  const box = byId('arguments');
  const names = view.arguments.map(field => field.path).join('|');
  if (box.dataset.names === names) return;
  box.dataset.names = names;
  const sections = new Map();
  for (const field of view.arguments) sections.set(field.section, [...(sections.get(field.section) ?? []), field]);
  box.replaceChildren(...[...sections].map(([name, fields]) => {
    const details = document.createElement('details');
    details.open = fields.length <= 4 || fields.some(field => at(view.config, field.path) !== undefined);
    const summary = make('summary', `Arguments of ${name} `);
    summary.append(make('span', String(fields.length), 'tiny faint'));
    details.append(summary, ...fields.map(argument));
    return details;
  }));
}

function argument(field) {
  const box = make('div', '', 'field');
  box.dataset.path = field.path;
  box.dataset.kind = field.kind;
  const id = `argument.${field.path}`;
  const label = make('label', field.path.slice(field.path.lastIndexOf('.') + 1));
  label.htmlFor = id;
  label.append(make('code', field.path, 'tiny'));
  const input = document.createElement(field.kind === 'words' || field.kind === 'flag' ? 'select' : field.kind === 'yaml' ? 'textarea' : 'input');
  input.id = id;
  if (input.tagName === 'SELECT') input.append(new Option(field.default || 'not set', ''), ...(field.kind === 'flag' ? ['true', 'false'] : field.words).map(word => new Option(word, word)));
  else input.placeholder = field.default;
  const bounds = [field.minimum === null ? '' : `At least ${field.minimum}.`, field.maximum === null ? '' : `At most ${field.maximum}.`];
  const line = make('p', '', 'small bad-ink fault');
  line.id = `${id}.fault`;
  line.hidden = true;
  const right = document.createElement('div');
  right.append(input, make('p', [field.text, ...bounds].filter(Boolean).join(' '), 'tiny faint'), line);
  box.append(label, right);
  return box;
}

const count = number => Number(number).toLocaleString('en');
function bytes(size) {
  if (size === null || size === undefined) return 'unknown';
  let scaled = size;
  for (const unit of ['B', 'KiB', 'MiB', 'GiB']) { if (scaled < 1024) return `${scaled.toFixed(unit === 'B' ? 0 : 1)} ${unit}`; scaled /= 1024; }
  return `${scaled.toFixed(1)} TiB`;
}

function amounts() {
  const rows = [];
  for (const cost of view.report?.cost ?? []) {
    rows.push([cost.stage, `${count(cost.steps)} steps, ${count(cost.rollouts)} rollouts${cost.steps ? `, ${count(Math.round(cost.rollouts / cost.steps))} a step` : ''}`]);
    rows.push(['tokens', `${count(cost.response_tokens)} sampled at most`]);
    rows.push(['evaluations', `${count(cost.evaluations)}, ${count(cost.evaluation_rows)} answers`]);
    rows.push(['disk', `${count(cost.checkpoints_kept)} checkpoints, ${bytes(cost.checkpoints_bytes)}; log ${bytes(cost.log_bytes)} at most`]);
  }
  for (const memory of view.report?.memory ?? []) {
    rows.push([`${memory.role} memory`, memory.needs.map(need => `${need.what} ${bytes(need.size_bytes)}`).join(', ') || 'unknown']);
  }
  byId('amounts').replaceChildren(...rows.flatMap(([name, text]) => [make('dt', name), make('dd', text)]));
}

function file() {
  const before = new Set((first ?? '').split('\n'));
  yaml.replaceChildren(...view.text.split('\n').map(line => (before.has(line) ? `${line}\n` : make('span', line || ' ', 'changed'))));
  byId('file').textContent = `${shown(at(view.config, 'name')) || 'mine'}.yaml`;
}

function begin(from, edits = {}) {
  beginning = from;
  changes = edits;
  first = null;
  // What the page shows is still the draft before: it must not be submitted in place of this one.
  verdict.textContent = 'checking';
  mayNot();
  check();
}

/* A former run needs another name: its folder holds what it made. */
function again(config) {
  begin({ config }, { name: { kind: 'text', text: `${shown(config.name) || 'run'}-2` } });
}

const PASTED = { paste: 'An experiment file of rftd or Trinity-RFT', script: 'A shell script of veRL', hydra: 'A configuration of veRL (Hydra)' };

function chosen() {
  const option = start.selectedOptions[0];
  const isPasted = option.value in PASTED;
  byId('paste').hidden = !isPasted;
  byId('choices').hidden = option.value === 'paste';
  if (!isPasted) byId('imported').hidden = true;
  if (option.value === 'text') begin({ text: option.dataset.text });
  else if (option.value === 'run') again(JSON.parse(start.dataset.config));
  else if (option.value === 'left') check();
  else if (option.value === 'open') location.assign(`/studio?from=${option.dataset.id}`);
  else { byId('paste-title').textContent = PASTED[option.value]; pasted.focus(); }
}

const MOST_CHARACTERS = { paste: 1 << 20, script: 1 << 17, hydra: 1 << 17 };
const split = (text, mark) => text.split(mark).map(word => word.trim()).filter(Boolean);

function refuse(text, errors = []) {
  byId('pasted-say').textContent = text;
  byId('pasted-errors').replaceChildren(...errors.map(fault => make('li', `${fault.where ? `${fault.where}: ` : ''}${words(fault, true)}`)));
}

/* The text as a beginning: a file as it is, a script of veRL as the file that the daemon makes of its text. */
async function use() {
  const kind = start.value;
  refuse('');
  if (pasted.value.length > MOST_CHARACTERS[kind]) { refuse(`${count(pasted.value.length)} characters, and ${count(MOST_CHARACTERS[kind])} are the most`); return; }
  if (kind === 'paste') { byId('paste').hidden = true; begin({ text: pasted.value }); return; }
  const choices = { sync_offset: Number(byId('sync_offset').value) || 0, assume: split(byId('assume').value, '\n'), take: split(byId('take').value, ',').map(Number), skip: split(byId('skip').value, ',').map(Number) };
  try {
    const answer = await fetch('/v1/experiments/import-verl', { method: 'POST', headers: { 'Content-Type': 'application/json' }, body: JSON.stringify({ text: pasted.value, kind, ...choices }) });
    const body = await answer.json();
    if (!answer.ok) { refuse(`${body.detail}${body.fix ? `; fix: ${body.fix}` : ''}`); return; }
    if (body.errors.length) { refuse('Nothing could be imported:', body.errors); return; }
    const sums = {};
    for (const line of body.lines) sums[line.outcome] = (sums[line.outcome] ?? 0) + 1;
    byId('imported-sum').textContent = Object.entries(sums).map(([outcome, number]) => `${number} ${outcome}`).join(', ');
    byId('imported-lines').replaceChildren(...body.lines.map(line => make('li', line.text)));
    byId('imported').hidden = false;
    byId('paste').hidden = true;
    begin({ text: body.text });
  } catch { refuse('The daemon does not answer. The text is kept.'); }
}

async function opened(file) {
  if (!file) return;
  if (file.size > 4 * MOST_CHARACTERS[start.value]) { refuse(`${file.name} has ${bytes(file.size)}: too large for ${PASTED[start.value].toLowerCase()}`); return; }
  pasted.value = await file.text();
  refuse('');
}

/* The file as shown, comments included, into the folder of downloads. */
function save() {
  const anchor = document.createElement('a');
  anchor.href = URL.createObjectURL(new Blob([view.text], { type: 'application/yaml' }));
  anchor.download = byId('file').textContent.replaceAll(/[^\w.-]+/g, '-');
  anchor.click();
  setTimeout(() => URL.revokeObjectURL(anchor.href), 60000);
}

function mode(isExpert) {
  byId('beginner').setAttribute('aria-pressed', String(!isExpert));
  byId('expert').setAttribute('aria-pressed', String(isExpert));
  byId('essential').hidden = isExpert;
  byId('all').hidden = !isExpert;
  byId('find').hidden = !isExpert;
  if (view) show();
}

form.addEventListener('submit', event => event.preventDefault());
form.addEventListener('input', event => {
  const field = event.target.closest('.field');
  changes[field.dataset.path] = { kind: field.dataset.kind, text: event.target.value };
  mayNot();
  keep();
  clearTimeout(wait);
  wait = setTimeout(check, 250);
});
start.addEventListener('change', chosen);
byId('afresh').addEventListener('click', () => { start.querySelector('[value=left]')?.remove(); start.selectedIndex = 0; chosen(); });
byId('use').addEventListener('click', use);
byId('opened').addEventListener('change', event => opened(event.target.files[0]));
byId('save').addEventListener('click', () => { if (view) save(); });
byId('beginner').addEventListener('click', () => mode(false));
byId('expert').addEventListener('click', () => mode(true));
byId('find').addEventListener('input', event => {
  const wanted = event.target.value.toLowerCase();
  for (const details of document.querySelectorAll('#all details')) {
    let any = false;
    for (const field of details.querySelectorAll('.field')) {
      field.hidden = wanted !== '' && !field.textContent.toLowerCase().includes(wanted);
      any ||= !field.hidden;
    }
    details.hidden = !any;
    details.open = wanted !== '' && any;
  }
});
const draft = kept();
if (start.selectedOptions[0].dataset.opened) {
  // Read once: a reload goes on with what was typed since.
  history.replaceState(null, '', '/studio');
  chosen();
} else if (draft && !start.dataset.config) {
  start.prepend(new Option('what was left here', 'left', true, true));
  begin(draft.beginning, draft.changes);
} else chosen();
