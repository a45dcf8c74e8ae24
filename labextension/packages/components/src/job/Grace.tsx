/** How long the grace period of a pausing job still lasts. */

import { duration } from '../amounts';
import { useClock, useTrans, type Translations } from '../context';

/** ``endsAt``: ``grace_ends_at`` of the job. */
export function Grace({ endsAt }: { endsAt: string }): JSX.Element {
  const trans = useTrans();
  return <>{graceText(endsAt, useClock(1_000), trans)}</>;
}

export function graceText(endsAt: string, now: number, trans: Translations): string {
  const left = Date.parse(endsAt) - now;
  return left > 0 ? trans.__('grace period: %1 left', duration(left)) : trans.__('grace period over');
}
