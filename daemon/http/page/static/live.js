/* One EventSource for all tabs of a browser: the tab with the lock listens, and tells the others by a channel.
 * The server sends `changed` with the ids of runs with new records, null for all. htmx gets an object with the
 * methods of an EventSource, which lets through what the tab shows, and nothing while the tab is hidden. */
const URL_ = '/v1/stream';
const LOCK = 'rftd-changes';
const AWAY_MS = 3000;
const TICK_MS = 3000;
const channel = new BroadcastChannel(LOCK);
const target = new EventTarget();
let missed = false;
let awaySince = null;
let shownAt = Date.now();
let leading = false;
let state = 'connecting';

const label = document.getElementById('live');
const away = document.getElementById('away');
const run = document.body.dataset.run || null;

function concerns(ids) { return ids === null || run === null || ids.includes(run); }

function deliver(ids) {
  if (!concerns(ids)) return;
  if (document.hidden) { missed = true; return; }
  missed = false;
  target.dispatchEvent(new MessageEvent('changed', { data: JSON.stringify(ids) }));
}

function turn(next) {
  if (next === state) return;
  state = next;
  label.textContent = next;
  label.classList.toggle('warn-ink', next !== 'live');
  awaySince = next === 'live' ? null : awaySince ?? Date.now();
  if (next === 'live') away.hidden = true;
}

function hear(message) {
  if (message.ask) { if (leading) channel.postMessage({ state }); return; }
  if (message.state) turn(message.state);
  if ('ids' in message) deliver(message.ids);
}

function tell(message) { hear(message); channel.postMessage(message); }

function listen() {
  leading = true;
  let source;
  const open = () => {
    source = new EventSource(URL_);
    source.addEventListener('changed', event => { tell({ state: 'live', ids: JSON.parse(event.data) }); });
    source.onerror = () => {
      tell({ state: state === 'signed out' ? state : 'away' });
      // A refusal (signed out, too many listeners) closes the source for good: it is asked again, in its place.
      if (source.readyState === EventSource.CLOSED) setTimeout(open, 5000);
    };
  };
  open();
  addEventListener('pagehide', () => source.close());
  return new Promise(() => {});
}

channel.onmessage = event => hear(event.data);
channel.postMessage({ ask: true });
// Locks need a secure context: over plain HTTP from another machine each tab listens for itself.
if (navigator.locks) navigator.locks.request(LOCK, listen); else listen();

// Words with a time in them are read again now and then, but not by a hidden tab.
setInterval(() => { if (!document.hidden) target.dispatchEvent(new MessageEvent('tick', { data: '' })); }, TICK_MS);
document.addEventListener('visibilitychange', () => { if (!document.hidden && missed) deliver(null); });
addEventListener('pageshow', event => { if (event.persisted) location.reload(); });
document.addEventListener('htmx:afterRequest', event => {
  const { xhr, successful } = event.detail;
  if (successful) shownAt = Date.now();
  else if (xhr?.status === 401) turn('signed out');
  else if (xhr?.status === 404) say(`This is no longer known to the daemon. You see the state of ${new Date(shownAt).toLocaleTimeString()}.`);
  const release = xhr?.getResponseHeader('Rftd-Page');
  if (release && release !== document.body.dataset.release) say('The daemon has another release than this tab: reload when nothing typed would be lost.');
});
function say(text) {
  away.textContent = text;
  away.hidden = false;
}

setInterval(() => {
  if (awaySince === null || Date.now() - awaySince < AWAY_MS) return;
  const time = new Date(shownAt).toLocaleTimeString();
  say(state === 'signed out'
    ? `This browser is signed out: type rftd open. You see the state of ${time}.`
    : `The daemon has not answered for ${Math.round((Date.now() - awaySince) / 1000)} s. You see the state of ${time}.`);
}, 1000);

htmx.createEventSource = () => ({
  readyState: EventSource.OPEN,
  close() {},
  addEventListener: (name, listener) => target.addEventListener(name, listener),
  removeEventListener: (name, listener) => target.removeEventListener(name, listener),
});
export const changes = target;
