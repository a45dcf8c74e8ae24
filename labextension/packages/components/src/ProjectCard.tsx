/** One's projects: the quota of each pool, what is in use, and who holds the GPUs. */

import { RUNNING, type Job, type Project, type ProjectPool } from '@jupyter-gpu-quota/api';

import { gpus } from './amounts';
import { useGpuState, useTrans } from './context';
import { QuotaBar } from './QuotaBar';

export function ProjectCards(): JSX.Element {
  const { projects, me, jobs } = useGpuState();
  const trans = useTrans();
  const mine = projects.filter(project => project.role !== null);
  if (me !== null && mine.length === 0) {
    return <p className="jgq-quiet">{trans.__('You are in no project with GPUs. A hub admin adds members in the quota file.')}</p>;
  }
  return (
    <>
      {mine.map(project => (
        <ProjectCard key={project.name} project={project} running={running(jobs.values(), project.name)} />
      ))}
    </>
  );
}

function running(jobs: Iterable<Job>, project: string): Job[] {
  return [...jobs].filter(job => job.project === project && RUNNING.has(job.state));
}

function ProjectCard({ project, running }: { project: Project; running: Job[] }): JSX.Element {
  return (
    <section className="jgq-project">
      <h4>
        {project.name}
        {project.role === 'lead' && <span className="jgq-tag">lead</span>}
        {project.department && <span className="jgq-quiet"> · {project.department.name}</span>}
      </h4>
      {project.pools.map(pool => (
        <PoolRow key={pool.pool} pool={pool} usageByUser={usageByUser(running.filter(job => job.pool === pool.pool))} />
      ))}
    </section>
  );
}

/** Who holds how much in these jobs, the most first. */
function usageByUser(jobs: readonly Job[]): [string, number][] {
  const milli = new Map<string, number>();
  for (const job of jobs) {
    const held = job.gpu_milli * (job.held_ranks ?? job.ranks);
    milli.set(job.user, (milli.get(job.user) ?? 0) + held);
  }
  return [...milli].sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1));
}

function PoolRow({ pool, usageByUser }: { pool: ProjectPool; usageByUser: [string, number][] }): JSX.Element {
  const trans = useTrans();
  const within = Math.min(pool.training_used_milli, pool.training_milli);
  const over = pool.training_used_milli - within;
  const label = trans.__(
    '%1: training %2 of %3 GPU quota, %4 over quota; notebooks %5 of %6',
    pool.pool,
    gpus(within),
    gpus(pool.training_milli),
    gpus(over),
    gpus(pool.notebook_used_milli),
    gpus(pool.notebook_milli),
  );
  const limit = pool.limit_milli == null ? '' : trans.__(', limit %1', gpus(pool.limit_milli));
  const notebooks = trans.__('notebooks %1 of %2', gpus(pool.notebook_used_milli), gpus(pool.notebook_milli));
  if (pool.training_milli === 0 && pool.training_used_milli === 0 && pool.fair_share_milli === 0) {
    return (
      <p className="jgq-pool">
        <b>{pool.pool}</b> <span className="jgq-quiet">{notebooks}</span>
      </p>
    );
  }
  return (
    <div className="jgq-pool">
      <p>
        <b>{pool.pool}</b> {trans.__('%1 in use of %2 quota', gpus(pool.training_used_milli), gpus(pool.training_milli))}
        {over > 0 && <span className="jgq-over"> {trans.__('(%1 over quota)', gpus(over))}</span>}
      </p>
      <QuotaBar
        parts={[
          { milli: within, kind: 'used' },
          { milli: over, kind: 'over' },
        ]}
        quotaMilli={pool.training_milli}
        label={label}
      />
      <p className="jgq-quiet">
        {trans.__('fair share %1%2, %3 waiting', gpus(pool.fair_share_milli), limit, pool.queued_jobs)}
        {pool.notebook_milli > 0 && ` · ${notebooks}`}
      </p>
      {usageByUser.length > 0 && (
        <p className="jgq-quiet">{usageByUser.map(([user, milli]) => `${user} ${gpus(milli)}`).join(' · ')}</p>
      )}
    </div>
  );
}
