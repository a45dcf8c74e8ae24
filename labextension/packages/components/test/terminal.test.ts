import { expect, test } from 'vitest';

import { TerminalBlocks } from '../src/job/terminal';

const render = (...blocks: string[]): string[] => new TerminalBlocks().render(blocks, 0);

test('a colour continues in the next block, until it is reset', () => {
  expect(render('\x1b[31mred\n', 'red\n', '\x1b[0mplain\n', 'plain')).toEqual([
    '<span class="ansi-red-fg">red\n</span>',
    '<span class="ansi-red-fg">red\n</span>',
    'plain\n',
    'plain',
  ]);
});

test('a colour survives the loss of its block and a change of the newest block', () => {
  const log = new TerminalBlocks();
  log.render(['\x1b[32mfirst\n', 'second\n', 'thi'], 0);
  expect(log.render(['second\n', 'third\n'], 1)[1]).toBe('<span class="ansi-green-fg">third\n</span>');
  expect(log.render(['third\n\x1b[0m', 'fourth'], 2)).toEqual(['<span class="ansi-green-fg">third\n</span>', 'fourth']);
  expect(log.render(['third\n\x1b[0m', 'fourth and fifth'], 2)[1]).toBe('fourth and fifth');
});

test.each([
  ['HTML', '<img src=x onerror=alert(1)>&amp;', '&lt;img src=x onerror=alert(1)&gt;&amp;amp;'],
  ['a link with a script', '\x1b]8;;javascript:alert(1)\x1b\\text\x1b]8;;\x1b\\', 'text'],
  ['a title', 'a\x1b]0;title\x07b', 'ab'],
  ['the clipboard', 'a\x1b]52;c;aGk=\x07b', 'ab'],
  ['a request to the terminal', 'a\x1bP+q544e\x1b\\b', 'ab'],
  ['cursor moves and erasures', 'a\x1b[2J\x1b[1;1H\x1b[5Ab', 'ab'],
  ['control characters', 'a\x00\x07\x08\x7f\x9bb', 'ab'],
])('%s is inert', (_, text, html) => {
  expect(render(text)).toEqual([html]);
});
