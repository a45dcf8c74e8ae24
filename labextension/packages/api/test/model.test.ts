import { expect, test } from 'vitest';

import { Model } from '../src/model';
import { ServiceError } from '../src/service';
import type { Transport } from '../src/transport';

test('after a refused change the job has the state that another browser gave it', async () => {
  const refusal = new ServiceError(409, 'ended', 'It has ended.');
  const service = { change: () => Promise.reject(refusal), job: () => Promise.resolve({ id: 'a', state: 'cancelled' }) };
  const model = new Model({ service } as unknown as Transport);
  await expect(model.change('a', 'hold')).rejects.toBe(refusal);
  expect(model.state.jobs.get('a')?.state).toBe('cancelled');
});

test('a job whose repetition has no answer is queued once, and again after an answer', async () => {
  const keys: string[] = [];
  const answers = [new ServiceError(0, 'timeout', 'No answer.'), { id: 'b' }, new ServiceError(422, 'over_limit', 'Too large.'), { id: 'c' }];
  const repeat = (_: string, __: string, key: string): Promise<unknown> => {
    keys.push(key);
    const answer = answers.shift();
    return answer instanceof Error ? Promise.reject(answer) : Promise.resolve(answer);
  };
  const model = new Model({ service: { repeat } } as unknown as Transport);
  await expect(model.repeat('a', 'clone')).rejects.toThrow('No answer.');
  await model.repeat('a', 'clone');
  await expect(model.repeat('a', 'clone')).rejects.toThrow('Too large.');
  await model.repeat('a', 'clone');
  expect(keys[1]).toBe(keys[0]);
  expect(new Set(keys).size).toBe(3);
});

test('a submitted job has the notes of its answer, and one without notes has none', async () => {
  const answers = [{ id: 'a', notes: ['data is a link.'] }, { id: 'b' }];
  const model = new Model({ submit: () => Promise.resolve(answers.shift()) } as unknown as Transport);
  const request = { command: ['true'] } as never;
  const jobs = [await model.submit(request, '.', new AbortController().signal), await model.submit(request, '.', new AbortController().signal)];
  expect(jobs).toEqual([{ id: 'a' }, { id: 'b' }]);
  expect([...model.notes]).toEqual([['a', ['data is a link.']]]);
});
