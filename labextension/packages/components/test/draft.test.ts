import { afterEach, expect, test, vi } from 'vitest';

import { chosenData, dataChoice, DraftStore, EMPTY_DRAFT, hasOpenQuote, inPlaceRequestOf, NO_DATA, parametersOf, requestOf, words } from '../src/submit/draft';

afterEach(() => void vi.unstubAllGlobals());

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

test('after a submission in one tab another one has its own idempotency key, and its text', () => {
  const tabs: ((event: Partial<StorageEvent>) => void)[] = [];
  vi.stubGlobal('addEventListener', (_: string, listener: (event: Partial<StorageEvent>) => void) => tabs.push(listener));
  let kept: string | null = null;
  const open = (): DraftStore => {
    const setItem = (key: string, text: string): void => {
      const event = { key, oldValue: kept };
      kept = text;
      tabs.filter((_, at) => at !== mine).forEach(tell => tell(event));
    };
    const mine = tabs.length;
    return new DraftStore('key', { getItem: () => kept, setItem } as unknown as Storage);
  };
  const first = open();
  first.change({ command: 'python train.py' });
  const second = open();
  const submitted = second.snapshot().key;
  expect(first.snapshot().key).toBe(submitted);
  second.change({});
  const { command, key } = first.snapshot();
  expect([command, key.length]).toEqual(['python train.py', 32]);
  expect(new Set([submitted, key, second.snapshot().key]).size).toBe(3);
  second.change({ command: 'ls' });
  expect(first.snapshot()).toMatchObject({ command, key });
  expect(open().snapshot()).toEqual(second.snapshot());
});

test.each([
  ['', { command: ['ls'], gpu: '1' }],
  [' work/a ', { command: ['ls'], gpu: '1', live: true, directory: 'work/a' }],
])('a job of the page in the folder %o', (folder, expected) => {
  expect(inPlaceRequestOf({ ...EMPTY_DRAFT, command: 'ls', folder, live: true })).toEqual(expected);
});

test('the parameters of a notebook are its assignments, and changed ones are given to the job', () => {
  const found = parametersOf("# training\nepochs = 10\nrate: float = 0.1  # per step\nname = 'a = b'\nif epochs == 3:\n    x = 1\n");
  expect(found.map(one => [one.name, one.preset])).toEqual([
    ['epochs', '10'],
    ['rate', '0.1'],
    ['name', "'a = b'"],
  ]);
  const parameters = found.map(one => (one.name === 'epochs' ? { ...one, value: ' 30 ' } : one));
  const asked = { ...EMPTY_DRAFT, command: 'train.ipynb', parameters };
  expect(requestOf(asked)?.command).toEqual(['train.ipynb', '-p', 'epochs', '30']);
  expect(requestOf({ ...asked, command: 'python train.py' })?.command).toEqual(['python', 'train.py']);
});

test.each([
  ["'Untitled (1).ipynb'", ['Untitled (1).ipynb']],
  ["'it'\\''s $HOME.ipynb'", ["it's $HOME.ipynb"]],
  ['python "a (1).py" --x=1', ['python', 'a (1).py', '--x=1']],
  ['echo "$HOME"', ['sh', '-c', 'echo "$HOME"']],
  ['python a.py --run exp#3 --epochs 10', ['sh', '-c', 'python a.py --run exp#3 --epochs 10']],
  ["python 'a#1.py' --epochs 10", ['python', 'a#1.py', '--epochs', '10']],
  ["python a.py 'b c", ['sh', '-c', "python a.py 'b c"]],
])('%s needs a shell only for what a shell would change', (command, expected) => {
  expect(words(command)).toEqual(expected);
});

test.each([
  ['python "a b.py" \'$c\'', false],
  ["'it'\\''s.ipynb'", false],
  ['python "say \\"a.py"', false],
  ["python a.py # it's the first", false],
  ["python a.py 'b c", true],
  ["python a.py --run it's#1", true],
  ['python a.py "b\\"', true],
])('whether %s has an open quote: %s', (command, expected) => {
  expect(hasOpenQuote(command)).toBe(expected);
});

test('variables, messages, processors and memory of the form', () => {
  const draft = { ...EMPTY_DRAFT, command: 'x', variables: 'A=1=2\n\n B = c ', notify: 'never', cpus: '1.5', memoryGib: '2' };
  expect(requestOf(draft)).toMatchObject({ variables: { A: '1=2', B: ' c ' }, notify: [], cpu_milli: 1500, memory_mib: 2048 });
  expect(requestOf({ ...EMPTY_DRAFT, command: 'x' })).not.toHaveProperty('variables');
});

const DATA = ['images', 'two words'];

test.each([
  ['all of it is no choice', DATA, '', undefined],
  ['some of it', ['two words'], 'two words', ['two words']],
  ['none of it', [], NO_DATA, []],
])('data in the form: %s', (_, chosen, kept, asked) => {
  const data = dataChoice(chosen, DATA);
  expect([data, chosenData(data, DATA)]).toEqual([kept, chosen]);
  expect(requestOf({ ...EMPTY_DRAFT, command: 'x', data })?.data).toEqual(asked);
});

test('data that the user may no longer use is not chosen', () => {
  expect(chosenData('images\ngone', DATA)).toEqual(['images']);
});
