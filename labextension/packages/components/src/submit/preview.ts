/** The preview of the job in the form, which is asked for again when the amounts that it depends on have changed. */

import type { DryRun, Project } from '@jupyter-gpu-quota/api';

export type Outcome = { of: 'dry run'; found: DryRun } | { of: 'refusal' | 'no answer'; message: string };

/** An outcome, and the request that it was asked for as JSON. */
export interface Preview {
  readonly asked: string;
  readonly outcome: Outcome;
}

/** Whether the form, whose request is `asked`, may not be submitted. A refusal of an earlier request says nothing about it. */
export function isRefused(preview: Preview | null, asked: string): boolean {
  return preview !== null && preview.asked === asked && preview.outcome.of === 'refusal';
}

const FIRST_AFTER_MS = 500;
const LOOK_EVERY_MS = 1_000;
const AGAIN_AFTER_MS = 10_000;
/** After an answer a form waits this many times as long as it took: 200 forms that are shown keep at most one CPU busy. */
const REST = 200;

/** The amounts of the projects, for comparison. The use of devices changes no decision. */
export function amountsOf(projects: readonly Project[]): string {
  const shown = projects.map(({ name, submit, pools }) => [name, submit, pools]);
  return JSON.stringify(shown, (key, value: unknown) => (key.startsWith('utilised') ? undefined : value));
}

/**
 * Ask for a preview, and again when `amounts` has changed or there was no answer. Nothing is asked while the form is not shown.
 *
 * `ask` does not reject. `onOutcome` gets each outcome, until `signal` aborts.
 */
export function followPreview(
  ask: () => Promise<Outcome>,
  amounts: () => string,
  isShown: () => boolean,
  onOutcome: (outcome: Outcome) => void,
  signal: AbortSignal,
): void {
  let seen: string | null = null;
  const turn = async (): Promise<void> => {
    let rest = LOOK_EVERY_MS;
    if (isShown() && amounts() !== seen) {
      const [asked, began] = [amounts(), Date.now()];
      const outcome = await ask();
      if (signal.aborted) {
        return;
      }
      seen = outcome.of === 'no answer' ? null : asked;
      onOutcome(outcome);
      rest = Math.max(AGAIN_AFTER_MS, REST * (Date.now() - began));
    }
    timer = setTimeout(() => void turn(), rest);
  };
  let timer = setTimeout(() => void turn(), FIRST_AFTER_MS);
  signal.addEventListener('abort', () => clearTimeout(timer));
}
