/** A button that runs an action. It keeps the focus while the action runs, and passes it on when it is removed. */

import { useLayoutEffect, useRef, type ReactNode } from 'react';

export interface ActionButtonProps {
  id?: string;
  busy: boolean;
  onClick(): void;
  className?: string;
  /** The element that gets the focus when the button is removed. */
  after?(): HTMLElement | null;
  children: ReactNode;
}

export function ActionButton({ id, busy, onClick, className = '', after, children }: ActionButtonProps): JSX.Element {
  const button = useRef<HTMLButtonElement>(null);
  const next = useRef(after);
  next.current = after;
  useLayoutEffect(() => {
    const node = button.current;
    return () => {
      if (node !== null && node === document.activeElement) {
        next.current?.()?.focus();
      }
    };
  }, []);
  // A disabled button would lose the focus.
  return (
    <button id={id} ref={button} type="button" className={`jgq-button ${className}`} aria-disabled={busy || undefined} onClick={() => busy || onClick()}>
      {children}
    </button>
  );
}
