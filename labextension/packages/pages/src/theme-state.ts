/** The theme in force, for what is drawn on a canvas. */

import { useSyncExternalStore } from 'react';

const root = document.documentElement;

function subscribe(listener: () => void): () => void {
  const observer = new MutationObserver(listener);
  observer.observe(root, { attributeFilter: ['data-bs-theme'] });
  return () => observer.disconnect();
}

export function useTheme(): string {
  return useSyncExternalStore(subscribe, () => root.dataset.bsTheme ?? 'light');
}
