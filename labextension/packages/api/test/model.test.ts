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
