/** What the user may choose for a job, and the part of a draft that is still possible. */

import type { Project, SubmitChoices } from '@jupyter-gpu-quota/api';

import { chosenData, dataChoice, type Draft } from './draft';

export interface Choices {
  readonly projects: string[];
  /** The project of a draft that names none. */
  readonly preset: string | undefined;
  /** Of the project of the draft; null while unknown. */
  readonly choices: SubmitChoices | null;
  readonly models: string[];
}

/** The choices of the project `chosen`, otherwise of the notebook's project or the user's first one. */
export function choicesOf(projects: readonly Project[], ofNotebook: string | null, chosen: string): Choices {
  const mine = projects.filter(project => project.role !== null);
  const preset = mine.find(project => project.name === ofNotebook) ?? mine[0];
  const choices = (mine.find(project => project.name === chosen) ?? preset)?.submit ?? null;
  const models = [...new Set((choices?.pools ?? []).flatMap(pool => pool.models.map(one => one.model)))];
  return { projects: mine.map(project => project.name), preset: preset?.name ?? ofNotebook ?? undefined, choices, models };
}

/** These fields of the draft, each empty if it names something that the user may no longer use. */
export function possibleOf(draft: Draft, { projects, choices, models }: Choices): Pick<Draft, 'project' | 'pool' | 'environment' | 'gpuModel' | 'data'> {
  const kept = (value: string, possible: readonly string[]): string => (possible.includes(value) ? value : '');
  const usable = choices?.data ?? [];
  return {
    project: kept(draft.project, projects),
    pool: kept(draft.pool, choices?.pools.map(one => one.pool) ?? []),
    environment: kept(draft.environment, choices?.environments ?? []),
    gpuModel: kept(draft.gpuModel, models),
    data: choices === null ? draft.data : dataChoice(chosenData(draft.data, usable), usable),
  };
}
