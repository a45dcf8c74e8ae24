/** The values of a job's secrets, which are given again for a new job. They leave the form only in its request. */

import { useState } from 'react';

import { useAction, useTrans } from '../context';
import { ErrorText } from '../ErrorText';
import { Field } from '../submit/SubmitFields';

export interface SecretsFormProps {
  names: readonly string[];
  /** The name of the action that needs the secrets. */
  action: string;
  onBack(): void;
  onGiven(secrets: Readonly<Record<string, string>>): Promise<void>;
}

export function SecretsForm({ names, action, onBack, onGiven }: SecretsFormProps): JSX.Element {
  const trans = useTrans();
  const [values, setValues] = useState<Readonly<Record<string, string>>>({});
  const { busy, error, run } = useAction();
  return (
    <form
      className="jgq-form jgq-secrets"
      aria-label={trans.__('Secrets of the job')}
      onSubmit={event => {
        event.preventDefault();
        void (busy || run(() => onGiven(values)));
      }}
    >
      <p>{trans.__('Secrets are not copied to a new job. Enter their values again; they are not stored in the browser.')}</p>
      {names.map((name, at) => (
        <Field key={name} label={name}>
          {id => (
            <input
              id={id}
              className="jgq-input"
              type="password"
              autoComplete="new-password"
              autoFocus={at === 0}
              required
              value={values[name] ?? ''}
              onChange={event => setValues({ ...values, [name]: event.target.value })}
            />
          )}
        </Field>
      ))}
      <ErrorText error={error} />
      <div className="jgq-row">
        <button className="jgq-button jgq-primary" type="submit" aria-disabled={busy || undefined}>
          {action}
        </button>
        <button className="jgq-button" type="button" onClick={onBack}>
          {trans.__('Back')}
        </button>
      </div>
    </form>
  );
}
