/** A button of an action. It keeps the focus while the action is under way, and hands it on when it disappears. */

import { useLayoutEffect, useRef, type ReactNode } from 'react';

export interface ActionButtonProps {
  id?: string;
  busy: boolean;
  onClick(): void;
  className?: string;
  /** The element that gets the focus of a button that disappears. */
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
