/** What the attempts of a job were made of, folded away and read when it is opened. */

import { useEffect, useState } from 'react';

import type { Job, Provenance } from '@jupyter-gpu-quota/api';

import { ActionButton } from '../ActionButton';
import { bytes, localTime } from '../amounts';
import { useAction, useClock, usePanelContext, useTrans, type Translations } from '../context';
import { ErrorText } from '../ErrorText';

export function ProvenanceDetails({ job }: { job: Job }): JSX.Element {
  const trans = useTrans();
  const [open, setOpen] = useState(false);
  return (
    <details className="jgq-provenance" onToggle={event => setOpen(event.currentTarget.open)}>
      <summary>{trans.__('Provenance')}</summary>
      {open && <Attempt job={job} />}
    </details>
  );
}

export function Attempt({ job }: { job: Job }): JSX.Element {
  const { model, trans } = usePanelContext();
  const [attempt, setAttempt] = useState(job.attempt);
  const [found, setFound] = useState<Provenance | null>(null);
  const { busy, error, run } = useAction();
  const read = (): void => void run(async () => setFound(await model.transport.service.provenance(job.id, attempt)));
  useEffect(read, [model, job.id, attempt]);
  const attempts = Array.from({ length: job.attempt }, (_, before) => job.attempt - before);
  return (
    <>
      {attempts.length > 1 && (
        <select className="jgq-input" aria-label={trans.__('Attempt')} value={attempt} onChange={event => setAttempt(Number(event.target.value))}>
          {attempts.map(each => (
            <option key={each} value={each}>
              {trans.__('attempt %1', each)}
            </option>
          ))}
        </select>
      )}
      <ErrorText error={error} />
      {(error || found?.python === null) && (
        <ActionButton busy={busy} after={() => document.querySelector<HTMLElement>('.jgq-provenance > summary')} onClick={read}>
          {error ? trans.__('Try again') : trans.__('Read again')}
        </ActionButton>
      )}
      {found?.attempt === attempt && !error ? <Facts of={found} /> : busy && <p className="jgq-quiet">{trans.__('Loading…')}</p>}
    </>
  );
}

function Facts({ of }: { of: Provenance }): JSX.Element {
  const trans = useTrans();
  const now = useClock(60_000);
  const unknown = trans.__('not recorded');
  const facts: [string, string][] = [
    [trans.__('Command'), of.command.join(' ')],
    [trans.__('Code'), of.live ? trans.__('not copied, in %1', of.directory) : (of.bundle ?? trans.__('none'))],
    ...(of.environment ? [[trans.__('Environment'), of.environment] as [string, string]] : []),
    [trans.__('Python'), of.python ? `${of.python_version ?? '?'} · ${of.python}${of.python_from === 'PATH' ? ` (${trans.__('the first of PATH')})` : ''}` : unknown],
    [trans.__('Environment digest'), of.environment_digest ?? unknown],
    ...(of.image ? [[trans.__('Image'), of.image] as [string, string]] : []),
    ...of.data.map((data): [string, string] => [trans.__('Data %1', data.name), `${data.path} · ${stateOf(data, trans, now)}`]),
  ];
  const distributions = Object.entries(of.distributions);
  return (
    <>
      <dl className="jgq-facts">
        {facts.map(([name, value]) => [<dt key={name}>{name}</dt>, <dd key={`${name}-`}>{value}</dd>])}
      </dl>
      {distributions.length > 0 && (
        <details>
          <summary>{trans._n('%1 distribution', '%1 distributions', distributions.length, distributions.length)}</summary>
          <p className="jgq-code">{distributions.map(([name, version]) => `${name}==${version}`).join(' ')}</p>
        </details>
      )}
    </>
  );
}

/** The version of data at the start of the attempt, else its files; figures of only the first files are lower limits. */
function stateOf(data: Provenance['data'][number], trans: Translations, now: number): string {
  if (data.version !== null) {
    return trans.__('version %1', data.version);
  }
  if (data.files === null) {
    return trans.__('not recorded');
  }
  const more = data.is_complete ? '' : '≥ ';
  const size = data.bytes === null ? '' : `, ${more}${bytes(data.bytes)}`;
  const newest = data.newest_at === null ? '' : `, ${trans.__('newest %1', localTime(data.newest_at, now))}`;
  return `${more}${trans._n('%1 file', '%1 files', data.files, data.files)}${size}${newest}`;
}
