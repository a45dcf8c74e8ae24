/** The time that a job which is pausing has left to save. */

import { duration } from '../amounts';
import { useClock, useTrans, type Translations } from '../context';

/** ``endsAt``: ``grace_ends_at`` of the job. */
export function Grace({ endsAt }: { endsAt: string }): JSX.Element {
  const trans = useTrans();
  return <> · {graceText(endsAt, useClock(1_000), trans)}</>;
}

export function graceText(endsAt: string, now: number, trans: Translations): string {
  const left = Date.parse(endsAt) - now;
  return left > 0 ? trans.__('%1 left to save', duration(left)) : trans.__('no time left to save');
}
