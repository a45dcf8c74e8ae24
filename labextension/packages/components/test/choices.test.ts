import { expect, test } from 'vitest';

import type { Project } from '@jupyter-gpu-quota/api';

import { choicesOf, possibleOf } from '../src/submit/choices';
import { EMPTY_DRAFT } from '../src/submit/draft';

/** A project of the user, whose pool has these models of GPU. */
function project(name: string, ...models: string[]): Project {
  const pools = [{ pool: 'train', models: models.map(model => ({ model })) }];
  return { name, role: 'member', submit: { pools, environments: [], data: [] } } as unknown as Project;
}

const OTHER = { ...project('other'), role: null };

test.each([
  ['the notebook has', 'b', 'b'],
  ['is the first one, without a notebook', null, 'a'],
  ['is the first one, for a notebook of a project that the user has left', 'other', 'a'],
])('a job whose draft names no project goes to the project that %s', (_, ofNotebook, expected) => {
  expect(choicesOf([OTHER, project('a'), project('b')], ofNotebook, '').preset).toBe(expected);
});

test('the GPU model of a draft is dropped with a project that has it not', () => {
  const draft = { ...EMPTY_DRAFT, gpuModel: 'H100' };
  const projects = [project('a', 'A100'), project('b', 'A100', 'H100')];
  expect(['a', 'b'].map(chosen => possibleOf(draft, choicesOf(projects, null, chosen)).gpuModel)).toEqual(['', 'H100']);
});
