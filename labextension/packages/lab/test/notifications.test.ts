import { expect, test, vi } from 'vitest';

import { Notifications, type NotificationActions } from '../src/notifications';

vi.mock('@jupyterlab/apputils', () => ({ Notification: { warning: () => 'id', dismiss: () => undefined, error: () => undefined } }));

test('an idle event of this server is also shown by the countdown', () => {
  const onIdle = vi.fn(() => Promise.resolve());
  const notifications = new Notifications({ __: (text: string) => text } as never, { onIdle } as unknown as NotificationActions);
  const schema = 'https://events.jupyter.org/jupyter_gpu_quota/';
  notifications.take({ schema_id: `${schema}kernel_suspension/v1` } as never);
  expect(onIdle).not.toHaveBeenCalled();
  notifications.take({ schema_id: `${schema}idle/v1`, state: 'warned', message: 'It is idle.' } as never);
  expect(onIdle).toHaveBeenCalledOnce();
});
