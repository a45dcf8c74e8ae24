import { expect, test } from 'vitest';

import { DraftStore, EMPTY_DRAFT, inPlaceRequestOf, requestOf, words } from '../src/draft';

test.each([
  ['python train.py', ['python', 'train.py']],
  ["python 'my train.py' --name=\"a b\"", ['python', 'my train.py', '--name=a b']],
  ['echo $HOME', ['sh', '-c', 'echo $HOME']],
  ['cat a | wc > b', ['sh', '-c', 'cat a | wc > b']],
  ['ls *.py', ['sh', '-c', 'ls *.py']],
  ['FOO=1 python train.py', ['sh', '-c', 'FOO=1 python train.py']],
  ['cd work', ['sh', '-c', 'cd work']],
  ['python ~/x.py', ['sh', '-c', 'python ~/x.py']],
  ['', []],
])('the command %s', (command, expected) => {
  expect(words(command)).toEqual(expected);
});

test('a request has what was given, and the defaults of the service for the rest', () => {
  expect(requestOf({ ...EMPTY_DRAFT, command: 'sleep 1', priority: ' 60 ', preemptible: false })).toEqual({
    command: ['sleep', '1'],
    gpu: '1',
    priority: 60,
    preemptible: false,
  });
  expect(requestOf({ ...EMPTY_DRAFT, command: '  ' })).toBeNull();
});

test('what was typed is there after a restart, and another program in the storage does no harm', () => {
  const kept = new Map<string, string>();
  const storage = { getItem: (key: string) => kept.get(key) ?? null, setItem: (key: string, text: string) => kept.set(key, text) };
  new DraftStore('key', storage as unknown as Storage).change({ command: 'python train.py' });
  const again = new DraftStore('key', storage as unknown as Storage).snapshot();
  expect([again.command, again.key.length]).toEqual(['python train.py', 32]);
  kept.set('key', '{"command": 5, "gpu": null}');
  expect(new DraftStore('key', storage as unknown as Storage).snapshot()).toEqual(EMPTY_DRAFT);
  kept.set('key', '{');
  expect(new DraftStore('key', storage as unknown as Storage).snapshot()).toEqual(EMPTY_DRAFT);
});

test.each([
  ['', { command: ['ls'], gpu: '1' }],
  [' work/a ', { command: ['ls'], gpu: '1', live: true, directory: 'work/a' }],
])('a job of the page in the folder %o', (folder, expected) => {
  expect(inPlaceRequestOf({ ...EMPTY_DRAFT, command: 'ls', folder, live: true })).toEqual(expected);
});
