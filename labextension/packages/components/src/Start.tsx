/** When a waiting job starts: the sentence of the service, with the local time as its title. */

import { localTime } from './amounts';

interface Estimated {
  readonly estimate_at?: string | null;
  readonly estimate_text?: string | null;
}

export function Start({ of: { estimate_at: at, estimate_text: text } }: { of: Estimated }): JSX.Element | null {
  return at && text ? (
    <p className="jgq-start" title={localTime(at, Date.now())}>
      {text}
    </p>
  ) : null;
}
