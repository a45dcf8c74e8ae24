/** The log of a job: of the newest attempt and those that follow, or of a chosen one. */

import { useState } from 'react';

import type { JobDetail } from '@jupyter-gpu-quota/api';
import { LogView } from '@jupyter-gpu-quota/components';

interface Choice {
  readonly attempt: number;
  readonly rank: number;
}

function valueOf(choice: Choice): string {
  return `${choice.attempt}.${choice.rank}`;
}

/** Every log, the newest attempt first. */
function choicesOf(job: JobDetail): Choice[] {
  const found = new Map(job.rank_records.map(({ attempt, rank }) => [valueOf({ attempt, rank }), { attempt, rank }]));
  return [...found.values()].sort((a, b) => b.attempt - a.attempt || a.rank - b.rank);
}

export function LogSection({ job }: { job: JobDetail }): JSX.Element {
  const choices = choicesOf(job);
  const [chosen, setChosen] = useState(() => new URLSearchParams(window.location.search).get('log') ?? '');
  const newest = choices[0];
  const shown = choices.find(one => valueOf(one) === chosen) ?? newest;
  const choose = (value: string): void => {
    setChosen(value);
    window.history.replaceState(null, '', `?log=${value}`);
  };
  const attempt = shown?.attempt ?? 1;
  const rank = shown?.rank ?? 0;
  return (
    <section aria-labelledby="log-title" id="log-section">
      <div className="log-head">
        <h2 id="log-title">Log</h2>
        {shown && (
          <label className="log-which">
            Of
            <select id="log-which" value={valueOf(shown)} onChange={event => choose(event.target.value)}>
              {choices.map(one => (
                <option key={valueOf(one)} value={valueOf(one)}>
                  attempt {one.attempt}
                  {job.ranks > 1 && `, rank ${one.rank}`}
                </option>
              ))}
            </select>
          </label>
        )}
      </div>
      {job.attempt === 0 || newest === undefined ? (
        <p className="muted" id="log-says">
          {job.ended_at ? 'It never started.' : 'It has not started yet.'}
        </p>
      ) : (
        <LogView
          id={job.id}
          state={job.state}
          rank={rank}
          attempt={attempt === newest.attempt ? 0 : attempt}
          whereCut={`jupyter gpu-quota logs --attempt ${attempt} --rank ${rank} ${job.id} prints the stored log`}
        />
      )}
    </section>
  );
}
