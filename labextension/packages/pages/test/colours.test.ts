import { expect, test } from 'vitest';

import type { Project } from '@jupyter-gpu-quota/api';

import { coloursOf } from '../src/pieces';

const project = (name: string, position?: number): Project => ({ name, position }) as Project;

test('a project has the colour of its position in the quota file, for every reader', () => {
  expect(coloursOf([project('b', 1)]).get('b')).toBe('c1');
  expect([...coloursOf([project('a', 0), project('b', 1), project('i', 8)]).values()]).toEqual(['c0', 'c1', 'c0']);
});

test('an older service has no positions', () => {
  expect(coloursOf([project('a'), project('b')]).get('b')).toBe('c1');
});
