/* Keys, theme, ages, and rows opened by a click anywhere. A link with `data-key` is clicked by its key. */
const keys = document.getElementById('keys');
const skew = Number(document.body.dataset.now) - Date.now();

function turnTheme() {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === 'dark' : matchMedia('(prefers-color-scheme: dark)').matches;
  root.dataset.theme = dark ? 'light' : 'dark';
  try { localStorage.setItem('rftd-theme', root.dataset.theme); } catch { /* no storage in a private window */ }
  dispatchEvent(new Event('theme'));
}

/* As `age` of the daemon: one unit, the larger one from two on. */
function age(ms) {
  const seconds = Math.max(0, ms / 1000);
  for (const [unit, size] of [['d', 86400], ['h', 3600], ['m', 60]]) if (seconds >= 2 * size) return Math.floor(seconds / size) + unit;
  return Math.floor(seconds) + 's';
}

setInterval(() => {
  if (document.hidden) return;
  for (const time of document.querySelectorAll('time[data-since]')) {
    const text = age(Date.now() + skew - Number(time.dataset.since));
    if (time.textContent !== text) time.textContent = text;
  }
}, 1000);

function move(by) {
  const links = [...document.querySelectorAll('tr.go a.name')];
  if (!links.length) return;
  const at = links.indexOf(document.activeElement);
  const next = at < 0 ? (by > 0 ? 0 : links.length - 1) : Math.min(links.length - 1, Math.max(0, at + by));
  links[next].focus();
}

document.getElementById('theme').addEventListener('click', turnTheme);
document.getElementById('keys-button').addEventListener('click', () => keys.showModal());
document.addEventListener('click', event => {
  const row = event.target.closest('tr.go');
  if (row && !event.target.closest('a, button, input') && !String(getSelection())) row.querySelector('a.name').click();
});
let before = '';
document.addEventListener('keydown', event => {
  if (event.target.matches('input, select, textarea, canvas') && event.key.startsWith('Arrow')) return;
  if (event.target.matches('input:not([type=range]), select, textarea') || event.metaKey || event.ctrlKey || event.altKey) return;
  const key = before + event.key;
  before = '';
  const keyed = [...document.querySelectorAll('[data-key]')].find(element => element.dataset.key === key);
  if (keyed) { event.preventDefault(); if (keyed.matches('input')) keyed.focus(); else keyed.click(); }
  else if (event.key === 'g') before = 'g';
  else if (key === 'gr') location.assign('/');
  else if (event.key === '?') keys.showModal();
  else if (event.key === 't') turnTheme();
  else if (event.key === 'j') move(1);
  else if (event.key === 'k') move(-1);
  else if (event.key === '.') { const view = document.querySelector('[data-json]'); if (view) location.assign(view.dataset.json); }
  else if (event.key === '/') { const search = document.querySelector('input[type=search]'); if (search) { event.preventDefault(); search.focus(); } }
});
