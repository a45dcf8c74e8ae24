/** What the service wrote into the page. */

import type { UsageQuery } from '@jupyter-gpu-quota/api';

export interface Frame {
  /** The name of the page. */
  readonly page: string;
  readonly title: string;
  /** The addresses of the pages and of the API; both end with a slash. */
  readonly prefix: string;
  readonly api: string;
  readonly xsrf: string;
  readonly user: string;
  /** The id of an event with the state that the page was made from: the stream begins there. */
  readonly seenEvent: string;
  /** The id of the job on its page. */
  readonly job: string;
}

export function frameOf(root: HTMLElement): Frame {
  const { page = '', title = '', prefix = '', api = '', xsrf = '', user = '', seenEvent = '', job = '' } = root.dataset;
  return { page, title, prefix, api, xsrf, user, seenEvent, job };
}

/** The service sends the table as an attachment. */
export function usageFileAddress(frame: Frame, query: UsageQuery): string {
  return `${frame.api}usage?${new URLSearchParams({ ...query, csv: '1' } as Record<string, string>)}`;
}

function jobAddress(frame: Frame, job: string): string {
  return `${frame.api}jobs/${encodeURIComponent(job)}`;
}

/** The service sends an output as an attachment. */
export function outputAddress(frame: Frame, job: string, path: string): string {
  return `${jobAddress(frame, job)}/outputs/${path.split('/').map(encodeURIComponent).join('/')}`;
}

export function outputsArchiveAddress(frame: Frame, job: string): string {
  return `${jobAddress(frame, job)}/outputs?archive=1`;
}
