/* First rows with the first prompt, and a tried rollout, of the draft that the studio shows; the daemon checks it again. */
const box = document.getElementById('trial');
const say = document.getElementById('trial-say');
const row = document.getElementById('row');
const buttons = { look: document.getElementById('look'), try: document.getElementById('try') };
let draft = null;
let running = false;

const make = (tag, text, className = '') => Object.assign(document.createElement(tag), { textContent: text, className });
const shown = number => (number === null ? '–' : Number(number).toLocaleString('en', { maximumFractionDigits: 4 }));
const plainWord = text => /^[\w@%+=:,./-]+$/.test(text);

function ready() {
  const mayNot = running || draft === null || draft.errors.length > 0;
  for (const button of Object.values(buttons)) button.setAttribute('aria-disabled', String(mayNot || button.dataset.refused === '1'));
  const file = document.getElementById('file').textContent;
  document.getElementById('try-cli').textContent = `rftd try ${plainWord(file) ? file : 'FILE'} --task ${Number(row.value) || 0}`;
}

function block(title, text) {
  const pre = make('pre', text);
  pre.tabIndex = 0;
  pre.setAttribute('role', 'region');
  pre.setAttribute('aria-label', title);
  return [make('h3', title), pre];
}

function list(pairs) {
  const dl = document.createElement('dl');
  dl.append(...pairs.flatMap(([name, text]) => [make('dt', name), make('dd', text)]));
  return dl;
}

function rows(body) {
  const over = body.prompt_tokens > body.most_tokens ? `: more than the ${shown(body.most_tokens)} that fit` : ` of ${shown(body.most_tokens)} that fit`;
  say.textContent = `${body.taskset}: ${shown(body.rows)} rows in ${body.path}`;
  box.replaceChildren(
    ...block(`Row ${body.row} as the model sees it, ${shown(body.prompt_tokens)} tokens${over}`, body.prompt),
    ...(body.answer ? block('Its answer', body.answer) : []),
    ...block(`Rows from ${body.row}`, body.items.join('\n')),
  );
}

function rollout(body) {
  const parts = Object.entries(body.rewards).map(([name, part]) => `${name} ${shown(part)}`).join(', ');
  say.textContent = body.error ? `The rollout failed: ${body.error}${body.fix ? `; fix: ${body.fix}` : ''}` : `Reward ${shown(body.reward)}${parts ? ` (${parts})` : ''}; nothing was recorded.`;
  const pairs = [['workflow', body.workflow], ['reward', body.reward_name], ['truth', body.truth], ['read by the reward', body.extracted ?? ''], ['trained', `${shown(body.trained_tokens)} of ${shown(body.drawn_tokens)} drawn tokens; ${body.finish}`], ['time', `${shown(body.duration_s)} s, after ${shown(body.opening_s)} s to open the model`]];
  pairs.push(...body.parts.map(part => ['ran', `${part.name}, ${shown(part.duration_s)} s${part.error ? `, failed: ${part.error}` : ''}`]));
  pairs.push(...body.auxiliary.map(answer => ['asked', `${answer.model}, ${shown(answer.tokens)} tokens: ${answer.text}`]));
  box.replaceChildren(list(pairs.filter(([, text]) => text)), ...body.calls.flatMap((call, index) => [
    ...block(`Call ${index + 1}: prompt, ${shown(call.prompt_ids.length)} tokens`, call.prompt),
    ...block(`Answer, temperature ${shown(call.temperature)}, ${call.finish}`, call.answer),
  ]));
}

async function ask(path, body, words, show) {
  running = true;
  ready();
  say.textContent = words;
  try {
    const answer = await fetch(path, { method: 'POST', headers: { 'Content-Type': 'application/json' }, body: JSON.stringify(body) });
    const told = await answer.json();
    if (answer.ok) { show(told); box.hidden = false; } else {
      const errors = told.errors?.length ? told.errors : [{ what: told.detail, fix: told.fix, field: told.field }];
      say.textContent = errors.map(error => `${error.field ? `${error.field}: ` : ''}${error.what}${error.fix ? `; fix: ${error.fix}` : ''}`).join('\n');
    }
  } catch {
    say.textContent = 'The daemon does not answer.';
  }
  running = false;
  ready();
}

const isReady = button => button.getAttribute('aria-disabled') !== 'true';
buttons.look.addEventListener('click', () => {
  if (isReady(buttons.look)) ask('/v1/experiments/first-rows', { config: draft.config, row: Number(row.value) || 0 }, 'reading rows', rows);
});
buttons.try.addEventListener('click', () => {
  if (isReady(buttons.try)) ask('/v1/experiments/try', { config: draft.config, row: Number(row.value) || 0 }, 'opening the model and answering; this may take minutes', rollout);
});
row.addEventListener('input', ready);
document.addEventListener('drafted', event => { draft = event.detail; ready(); });
