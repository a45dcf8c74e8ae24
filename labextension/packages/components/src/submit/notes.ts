/** Notes on the files of a job in the form, such as a script that its folder lacks. */

const FIRST_AFTER_MS = 500;
const AGAIN_AFTER_MS = 5_000;

/**
 * Ask for notes until there are none: the user may be creating the file. Nothing is asked while the form is not shown.
 *
 * `onNotes` gets those of each answer. It ends with `signal`, with an answer without notes, or with a failure.
 */
export function followNotes(
  ask: () => Promise<readonly string[]>,
  isShown: () => boolean,
  onNotes: (notes: readonly string[]) => void,
  signal: AbortSignal,
): void {
  const turn = async (): Promise<void> => {
    if (isShown()) {
      const notes = await ask().catch(() => []);
      if (signal.aborted || (onNotes(notes), notes.length === 0)) {
        return;
      }
    }
    timer = setTimeout(() => void turn(), AGAIN_AFTER_MS);
  };
  let timer = setTimeout(() => void turn(), FIRST_AFTER_MS);
  signal.addEventListener('abort', () => clearTimeout(timer));
}
