/** The theme of the hub's pages, set before the first paint. The hub keeps the choice in the browser. */

const KEY = 'jupyterhub-bs-theme';
const dark = window.matchMedia('(prefers-color-scheme: dark)');

function stored(): string | null {
  try {
    return window.localStorage.getItem(KEY);
  } catch {
    return null; // The storage is blocked.
  }
}

function apply(): void {
  const choice = stored();
  const preferred = dark.matches ? 'dark' : 'light';
  document.documentElement.dataset.bsTheme = choice === 'dark' || choice === 'light' ? choice : preferred;
}

function toggle(): void {
  const next = document.documentElement.dataset.bsTheme === 'dark' ? 'light' : 'dark';
  document.documentElement.dataset.bsTheme = next;
  try {
    window.localStorage.setItem(KEY, next);
  } catch {
    // It lasts until the page is closed.
  }
}

apply();
dark.addEventListener('change', apply);
window.addEventListener('storage', event => event.key === KEY && apply());
document.addEventListener('DOMContentLoaded', () => document.getElementById('theme-toggle')?.addEventListener('click', toggle));
