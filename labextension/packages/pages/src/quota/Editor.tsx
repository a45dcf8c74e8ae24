/** The editor of an admin: preview an edit, then apply exactly that edit. */

import { useEffect, useState } from 'react';

import type { QuotaEdit, Revision } from '@jupyter-gpu-quota/api';
import { ActionButton, ErrorText, useAction, usePanelContext } from '@jupyter-gpu-quota/components';

import { keptEdit, otherRevision, partsOf, whyNot, type Accepted, type KeptEdit, type Previewed } from './edit';

interface EditorProps {
  current: Revision | null;
  accepted: Accepted;
  onAccept(accepted: Accepted): void;
  /** Read again which revision is in force. */
  reread(): Promise<void>;
}

const ACCEPTANCES: readonly (readonly [keyof Accepted, string])[] = [
  ['overcommit', 'Accept quotas that do not fit their pool'],
  ['removal', 'Remove projects or pools that have work'],
  ['stops', 'Stop work whose enforcement is weaker than required'],
];

export function Editor({ current, accepted, onAccept, reread }: EditorProps): JSX.Element {
  const { model, say } = usePanelContext();
  const { service } = model.transport;
  const { busy, error, run } = useAction();
  const [isApplying, setApplying] = useState(false);
  /** What is edited stays, and is based on its revision, when another revision comes in force. */
  const [base, setBase] = useState({ text: current?.text ?? '', revision: current?.revision ?? 0 });
  const [text, setText] = useState(base.text);
  const [comment, setComment] = useState('');
  const [previewed, setPreviewed] = useState<Previewed | null>(null);
  const [kept, setKept] = useState<readonly KeptEdit[]>([]);
  useLeaveQuestion(text !== base.text || kept.length > 0);
  const show = (text: string, revision: number): void => {
    setBase({ text, revision });
    setText(text);
    setPreviewed(null);
  };
  if (current && current.revision > base.revision && text === base.text) {
    show(current.text, current.revision);
  }
  const other = text === base.text || isApplying ? null : otherRevision(current, base.revision, previewed);
  const load = (newer: Revision): void => {
    setKept([keptEdit(base, text), ...kept]);
    show(newer.text, newer.revision);
    say?.(`Revision ${newer.revision} is loaded. Your edit of revision ${base.revision} is kept below it.`);
  };
  const edit = (): QuotaEdit => ({
    text,
    comment,
    accept_overcommit: accepted.overcommit,
    accept_removal: accepted.removal,
    accept_stops: accepted.stops,
  });
  const preview = async (): Promise<void> => {
    const answer = await service.previewQuota(edit(), base.revision).then(
      (found): Previewed => ({ text, found }),
      (failure: Error): Previewed => ({ text, fault: failure.message }),
    );
    setPreviewed(answer);
    if ('found' in answer && answer.found.stale) {
      await reread();
    }
  };
  const apply = async (): Promise<void> => {
    setApplying(true);
    const applied = await service
      .applyQuota(edit(), base.revision)
      .catch(async (failure: Error) => {
        await reread(); // Another revision may be in force.
        throw failure;
      })
      .finally(() => setApplying(false));
    say?.([`Revision ${applied.revision} is in force.`, ...(applied.warnings ?? [])].join(' '));
    show(applied.text, applied.revision);
    setComment('');
    onAccept({ overcommit: false, removal: false, stops: false });
    await reread();
  };
  const reason = whyNot(text, previewed, accepted, other !== null);
  const mayApply = reason === '' && !busy;
  return (
    <>
      <form
        id="quota-form"
        onSubmit={event => {
          event.preventDefault();
          void run(preview);
        }}
      >
        <label htmlFor="quota-text">The quota file (YAML)</label>
        <textarea
          id="quota-text"
          rows={26}
          spellCheck={false}
          autoComplete="off"
          aria-describedby="quota-help"
          readOnly={isApplying}
          value={text}
          onChange={event => setText(event.target.value)}
        />
        <p className="muted" id="quota-help">
          Preview shows the arithmetic and the affected work, from the scheduler&apos;s own decision. Nothing changes before Apply.
        </p>
        {kept.map((one, at) => (
          <Kept key={kept.length - at} edit={one} onDiscard={() => setKept(kept.filter(each => each !== one))} />
        ))}
        <label htmlFor="quota-comment">Comment</label>
        <input id="quota-comment" maxLength={1000} autoComplete="off" readOnly={isApplying} value={comment} onChange={event => setComment(event.target.value)} />
        {ACCEPTANCES.map(([name, label]) => (
          <p key={name}>
            <label className="check">
              <input
                type="checkbox"
                id={`quota-${name}`}
                checked={accepted[name]}
                onChange={event => onAccept({ ...accepted, [name]: event.target.checked })}
              />{' '}
              {label}
            </label>
          </p>
        ))}
        <p className="actions">
          <button type="submit" id="quota-preview" aria-disabled={busy || undefined}>
            Preview
          </button>{' '}
          {/* A disabled button would lose the focus. */}
          <button
            type="button"
            className="primary"
            id="quota-apply"
            aria-describedby="quota-why"
            aria-disabled={!mayApply || undefined}
            onClick={() => mayApply && void run(apply)}
          >
            Apply
          </button>{' '}
          {other && (
            <>
              <ActionButton id="quota-load" busy={busy} after={editor} onClick={() => load(other)}>
                Load revision {other.revision}
              </ActionButton>{' '}
            </>
          )}
          <span className="muted" id="quota-why" role="status">
            {reason}
          </span>
        </p>
        <ErrorText error={error} />
      </form>
      <section aria-label="Preview" id="preview" aria-live="polite">
        {previewed && <Preview of={previewed} />}
      </section>
    </>
  );
}

/** The field of the file, which gets the focus when a button is removed. */
function editor(): HTMLElement | null {
  return document.getElementById('quota-text');
}

/** The browser asks before the page is left, while something in it is not applied. */
function useLeaveQuestion(isEdited: boolean): void {
  useEffect(() => {
    const ask = (event: Event): void => event.preventDefault();
    if (isEdited) {
      window.addEventListener('beforeunload', ask);
    }
    return () => window.removeEventListener('beforeunload', ask);
  }, [isEdited]);
}

/** An edit of an earlier revision, from which its author copies what is still wanted. */
function Kept({ edit: { revision, text, lines }, onDiscard }: { edit: KeptEdit; onDiscard(): void }): JSX.Element {
  const [first, last] = lines;
  const where = first === last ? `line ${first}` : `lines ${first} to ${last}`;
  return (
    <details id={`quota-kept-${revision}`} open>
      <summary>
        Your edit of revision {revision}, in {where}
      </summary>
      <textarea rows={12} readOnly spellCheck={false} aria-label={`Your edit of revision ${revision}`} value={text} />
      <p>
        <ActionButton busy={false} after={editor} onClick={onDiscard}>
          Discard<span className="unseen"> your edit of revision {revision}</span>
        </ActionButton>{' '}
        <span className="muted">Copy what you still want into the file above.</span>
      </p>
    </details>
  );
}

/** Its section is in the page before it, so that screen readers announce it. */
function Preview({ of }: { of: Previewed }): JSX.Element {
  return (
    <>
      <h2>Preview</h2>
      <div id="preview-says">
        {partsOf(of).map(([heading, lines]) => (
          <div key={heading}>
            <h3>{heading}</h3>
            <ul>
              {lines.map((line, at) => (
                <li key={at}>{line}</li>
              ))}
            </ul>
          </div>
        ))}
      </div>
    </>
  );
}
