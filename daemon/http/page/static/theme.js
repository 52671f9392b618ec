/* Before the first paint: the theme chosen earlier, else the system's. */
'use strict';
(() => {
  let theme = null;
  try { theme = localStorage.getItem('rftd-theme'); } catch { /* no storage in a private window */ }
  if (theme === 'dark' || theme === 'light') document.documentElement.dataset.theme = theme;
})();
