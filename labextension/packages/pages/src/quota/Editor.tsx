/** The editor of an admin: preview an edit, then apply exactly that edit. */

import { useState } from 'react';

import type { QuotaEdit, Revision } from '@jupyter-gpu-quota/api';
import { ErrorText, useAction, usePanelContext } from '@jupyter-gpu-quota/components';

import { partsOf, whyNot, type Accepted, type Previewed } from './edit';

interface EditorProps {
  current: Revision | null;
  accepted: Accepted;
  onAccept(accepted: Accepted): void;
  onApplied(): Promise<void>;
}

const ACCEPTANCES: readonly (readonly [keyof Accepted, string])[] = [
  ['overcommit', 'Accept quotas that do not fit their pool'],
  ['removal', 'Remove projects or pools that have work'],
  ['stops', 'Stop work whose enforcement is weaker than required'],
];

export function Editor({ current, accepted, onAccept, onApplied }: EditorProps): JSX.Element {
  const { model, say } = usePanelContext();
  const { service } = model.transport;
  const { busy, error, run } = useAction();
  const [isApplying, setApplying] = useState(false);
  /** What is edited stays, and is based on its revision, when another revision comes in force. */
  const [base, setBase] = useState({ text: current?.text ?? '', revision: current?.revision ?? 0 });
  const [text, setText] = useState(base.text);
  const [comment, setComment] = useState('');
  const [previewed, setPreviewed] = useState<Previewed | null>(null);
  const show = (text: string, revision: number): void => {
    setBase({ text, revision });
    setText(text);
    setPreviewed(null);
  };
  if (current && current.revision > base.revision && text === base.text) {
    show(current.text, current.revision);
  }
  const edit = (): QuotaEdit => ({
    text,
    comment,
    accept_overcommit: accepted.overcommit,
    accept_removal: accepted.removal,
    accept_stops: accepted.stops,
  });
  const preview = async (): Promise<void> => {
    setPreviewed(
      await service.previewQuota(edit(), base.revision).then(
        found => ({ text, found }),
        (failure: Error) => ({ text, fault: failure.message }),
      ),
    );
  };
  const apply = async (): Promise<void> => {
    setApplying(true);
    const applied = await service.applyQuota(edit(), base.revision).finally(() => setApplying(false));
    say?.([`Revision ${applied.revision} is in force.`, ...(applied.warnings ?? [])].join(' '));
    show(applied.text, applied.revision);
    setComment('');
    onAccept({ overcommit: false, removal: false, stops: false });
    await onApplied();
  };
  const reason = whyNot(text, previewed, accepted);
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
          <button type="button" className="primary" id="quota-apply" aria-describedby="quota-why" disabled={reason !== '' || busy} onClick={() => void run(apply)}>
            Apply
          </button>{' '}
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
