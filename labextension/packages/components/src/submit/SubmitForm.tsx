/** The form of a job: its command, GPUs and options, and the outcome of a dry run. */

import { useEffect, useRef, useState, useSyncExternalStore, type RefObject } from 'react';

import { isRefusal, type JobRequest } from '@jupyter-gpu-quota/api';

import { ActionButton } from '../ActionButton';
import { gpus } from '../amounts';
import { bundleOf, commandOf } from './bundle';
import { useGpuState, usePanelContext, useTrans } from '../context';
import { hasOpenQuote, inPlaceRequestOf, isNotebook, requestOf, type DraftStore } from './draft';
import { followNotes } from './notes';
import { amountsOf, followPreview, isRefused, type Outcome, type Preview } from './preview';
import { ErrorText } from '../ErrorText';
import { Start } from '../Start';
import { AdvancedFields, Field, MainFields, ParameterFields, useChoices, usePossible } from './SubmitFields';

/** `focused`: how often the form was asked for; with each time the command gets the focus. */
export function SubmitForm({ drafts, focused = 0 }: { drafts: DraftStore; focused?: number }): JSX.Element {
  const { model, onSubmitted, inPlace } = usePanelContext();
  const trans = useTrans();
  const state = useGpuState();
  const draft = usePossible(useSyncExternalStore(drafts.subscribe, drafts.snapshot));
  const { preset = '' } = useChoices(draft);
  const request = (inPlace ? inPlaceRequestOf : requestOf)({ ...draft, project: draft.project || preset });
  const asked = request === null ? '' : JSON.stringify({ ...request, idempotency_key: undefined });
  const isAway = state.connection === 'unavailable';
  const form = useRef<HTMLFormElement>(null);
  const preview = useDryRun(asked, draft.key, isAway, form);
  const mayNotSubmit = request === null || isRefused(preview, asked);
  const notes = useNotes(request, draft.folder, form);
  const [sending, setSending] = useState<AbortController | null>(null);
  const [error, setError] = useState('');
  const [file, setFile] = useState<File | null>(null);

  const command = useRef<HTMLInputElement>(null);
  const submit = useRef<HTMLButtonElement>(null);

  useEffect(() => setError(''), [draft]);
  useEffect(
    () => command.current?.setCustomValidity(hasOpenQuote(draft.command) ? trans.__('A quote in the command is not closed.') : ''),
    [draft.command, trans],
  );
  useEffect(() => {
    if (focused > 0) {
      command.current?.focus();
    }
  }, [focused]);

  const send = async (): Promise<void> => {
    if (request === null || mayNotSubmit || sending !== null) {
      return;
    }
    const stop = new AbortController();
    setSending(stop);
    setError('');
    try {
      const code = file && { bundle: await model.transport.service.putBundle(await bundleOf(file), stop.signal), live: false, directory: '.' };
      stop.signal.throwIfAborted();
      const job = await model.submit({ ...request, ...code }, draft.folder, stop.signal);
      drafts.change({});
      onSubmitted(job);
    } catch (failure) {
      setError(stop.signal.aborted ? trans.__('Cancelled. If the request was sent already, the job is in the list.') : (failure as Error).message);
    } finally {
      setSending(null);
    }
  };

  return (
    <form
      ref={form}
      className="jgq-form"
      onSubmit={event => {
        event.preventDefault();
        void send();
      }}
    >
      <Field label={trans.__('Command')} hint={inPlace ? undefined : trans.__('Runs in a copy of the folder; variables of the notebook are not available.')}>
        {(id, hintId) => (
          <input
            id={id}
            aria-describedby={hintId}
            ref={command}
            className="jgq-input jgq-code"
            value={draft.command}
            placeholder="python train.py --epochs 10"
            spellCheck={false}
            required
            onChange={event => drafts.change({ command: event.target.value })}
          />
        )}
      </Field>
      {inPlace && (
        <Field label={trans.__('File')} hint={trans.__('A script, or a .tar.gz of a folder: the job gets a copy. Without a file it runs in the folder.')}>
          {(id, hintId) => (
            <input
              id={id}
              aria-describedby={hintId}
              type="file"
              className="jgq-input"
              onChange={event => {
                const chosen = event.target.files?.[0] ?? null;
                setFile(chosen);
                setError('');
                if (chosen !== null && draft.command.trim() === '') {
                  drafts.change({ command: commandOf(chosen) });
                }
              }}
            />
          )}
        </Field>
      )}
      {request !== null && isNotebook(request.command) && draft.parameters.length > 0 && (
        <ParameterFields draft={draft} drafts={drafts} />
      )}
      <MainFields draft={draft} drafts={drafts} />
      <details>
        <summary>{trans.__('Advanced options')}</summary>
        <AdvancedFields draft={draft} drafts={drafts} />
      </details>
      <DryRunResult preview={preview} asked={asked} unavailable={isAway} notes={notes.filter(note => note !== error)} />
      <div className="jgq-row jgq-send">
        <ErrorText error={error} />
        {/* A disabled button would lose the focus. */}
        <button ref={submit} className="jgq-button jgq-primary" type="submit" aria-disabled={mayNotSubmit || sending !== null || undefined}>
          {sending ? (inPlace ? trans.__('Submitting…') : trans.__('Uploading the folder…')) : trans.__('Submit')}
        </button>
        {sending && (
          <ActionButton busy={false} after={() => submit.current} onClick={() => sending.abort()}>
            {trans.__('Cancel')}
          </ActionButton>
        )}
      </div>
    </form>
  );
}

/** Whether the form is seen: not in a hidden page or a collapsed sidebar. */
function isShown(form: RefObject<HTMLFormElement>): boolean {
  return !document.hidden && form.current?.checkVisibility() === true;
}

/** The outcome of a dry run of the request `asked`, shortly after its last change, after its submission, and when the service is
 * back; later when its projects have changed. Until the first one of a changed request it is that of the earlier one. `key` is
 * that of the draft. Only a refusal says that the job is not possible. */
function useDryRun(asked: string, key: string, isAway: boolean, form: RefObject<HTMLFormElement>): Preview | null {
  const { model } = usePanelContext();
  const [preview, setPreview] = useState<Preview | null>(null);
  useEffect(() => {
    if (asked === '') {
      setPreview(null);
      return;
    }
    const stop = new AbortController();
    const ask = (): Promise<Outcome> =>
      model.transport.service.dryRun(JSON.parse(asked) as JobRequest, stop.signal).then(
        (found): Outcome => ({ of: 'dry run', found }),
        (failure): Outcome => ({ of: isRefusal(failure) ? 'refusal' : 'no answer', message: (failure as Error).message }),
      );
    const show = (outcome: Outcome): void => setPreview({ asked, outcome });
    followPreview(ask, () => amountsOf(model.state.projects), () => isShown(form), show, stop.signal);
    return () => stop.abort();
  }, [asked, key, form, model, isAway]);
  return preview;
}

/** Notes on the files of this request. They are read while the form is seen. */
function useNotes(request: JobRequest | null, folder: string, form: RefObject<HTMLFormElement>): readonly string[] {
  const { model } = usePanelContext();
  const [notes, setNotes] = useState<readonly string[]>([]);
  const asked = request === null ? '' : JSON.stringify({ command: request.command });
  useEffect(() => {
    setNotes([]);
    const { transport } = model;
    if (asked === '' || transport.notes === undefined) {
      return;
    }
    const stop = new AbortController();
    const ask = (): Promise<readonly string[]> => transport.notes!(JSON.parse(asked) as JobRequest, folder, stop.signal);
    followNotes(ask, () => isShown(form), setNotes, stop.signal);
    return () => stop.abort();
  }, [asked, folder, form, model]);
  return notes;
}

interface DryRunResultProps {
  preview: Preview | null;
  /** The present request; the preview may be that of an earlier one. */
  asked: string;
  unavailable: boolean;
  notes: readonly string[];
}

export function DryRunResult({ preview, asked, unavailable, notes }: DryRunResultProps): JSX.Element {
  const trans = useTrans();
  const outcome = preview?.outcome;
  const isOld = preview !== null && preview.asked !== asked;
  return (
    <div className="jgq-outcome" aria-live="polite" aria-busy={isOld}>
      {isOld && !unavailable && <p className="jgq-checking">{trans.__('Checking…')}</p>}
      {outcome?.of === 'refusal' && !unavailable && <p className="jgq-error">{outcome.message}</p>}
      {outcome?.of === 'no answer' && !unavailable && (
        <p className="jgq-quiet">
          {trans.__('The preview is not available: %1', outcome.message)} {trans.__('You can submit without it.')}
        </p>
      )}
      {outcome?.of === 'dry run' && (
        <>
          <p>
            <b>{outcome.found.starts_now ? trans.__('Starts now.') : trans.__('Would be queued.')}</b> {outcome.found.reason.message}
          </p>
          <Start of={outcome.found} />
          {outcome.found.pauses.map((one, at) => (
            <p key={at} className="jgq-quiet">
              {one.message}
            </p>
          ))}
          <p className="jgq-quiet">{trans.__('Counts as %1 GPU of the quota', gpus(outcome.found.charged_milli))}</p>
        </>
      )}
      {notes.map(note => (
        <p key={note} className="jgq-note">
          {note}
        </p>
      ))}
    </div>
  );
}
