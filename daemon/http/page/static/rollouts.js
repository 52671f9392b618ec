/* Rollouts: a choice keeps the list where it was; the scrubber follows its links; stars and notes are commands. */
let scrolled = 0;

function list() { return document.querySelector('.glist'); }

document.addEventListener('htmx:beforeSwap', () => { scrolled = list()?.scrollTop ?? 0; });
document.addEventListener('htmx:afterSettle', settle);
// A refusal is a page of its own, with the reason.
document.addEventListener('htmx:responseError', event => { if (event.detail.xhr.status !== 401) location.assign(event.detail.xhr.responseURL); });
function settle() {
  if (list()) list().scrollTop = scrolled;
  for (const chosen of document.querySelectorAll('.glist .sel, .vlist .sel')) {
    const box = chosen.parentElement;
    if (chosen.offsetTop < box.scrollTop || chosen.offsetTop + chosen.offsetHeight > box.scrollTop + box.clientHeight) {
      box.scrollTop = chosen.offsetTop - box.clientHeight / 2;
    }
  }
}

document.addEventListener('change', event => {
  if (event.target.id === 'scrub') document.querySelectorAll('.ver > a')[Number(event.target.value)]?.click();
});

/* A command of the API; then the page is read with its effect, or the refusal stands below the note. */
async function annotate(change) {
  const answer = document.getElementById('answer');
  const refused = document.getElementById('refused');
  const body = JSON.stringify({ experience: answer.dataset.experience, ...change });
  try {
    const response = await fetch(answer.dataset.annotate, {
      method: 'POST', body, headers: { 'Content-Type': 'application/json', 'Idempotency-Key': crypto.randomUUID?.() ?? String(Math.random()) },
    });
    const receipt = await response.json();
    if (!response.ok) throw new Error(receipt.detail || receipt.title);
    const address = new URL(location);
    address.searchParams.set('id', answer.dataset.experience);
    address.searchParams.set('after', receipt.position);
    htmx.ajax('GET', address.pathname + address.search, { target: '#view', select: '#view', swap: 'outerHTML show:none' });
  } catch (error) {
    refused.textContent = error.message;
    refused.hidden = false;
  }
}

document.addEventListener('click', event => {
  if (event.target.closest('#star')) annotate({ star: document.getElementById('answer').dataset.starred !== '1' });
});
document.addEventListener('submit', event => {
  if (event.target.id !== 'note') return;
  event.preventDefault();
  const note = document.getElementById('note-text').value.trim();
  if (note) annotate({ note });
});
settle();
