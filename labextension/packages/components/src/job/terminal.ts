/** The text of a terminal as HTML: its colours as spans with classes, everything else as plain text. */

import { AnsiUp } from 'ansi_up';

/** Sequences that set a title, make a link or send data to a terminal, of which a link's text is kept; control characters. */
// eslint-disable-next-line no-control-regex
const CONTROL = /\x1b[\]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\)?|[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f-\x9f]/g;

interface Rendered {
  readonly text: string;
  readonly html: string;
  /** The colours at the end of the text. */
  readonly end: AnsiUp;
}

function beginning(): AnsiUp {
  const colours = new AnsiUp();
  colours.use_classes = true;
  colours.url_allowlist = {};
  return colours;
}

/** Renders the blocks of a log. A block begins with the colours of the one before, also after that was dropped. */
export class TerminalBlocks {
  private rendered = new Map<number, Rendered>();

  /** The HTML of blocks of which the first has the number `first`. Blocks that did not change are not rendered again. */
  render(blocks: readonly string[], first: number): string[] {
    const before = this.rendered;
    this.rendered = new Map();
    let previous = before.get(first - 1);
    const all = blocks.map((text, at) => {
      const known = before.get(first + at);
      const isSame = known?.text === text && (at === 0 || previous === before.get(first + at - 1));
      previous = isSame ? known : rendered(text, previous?.end ?? beginning());
      this.rendered.set(first + at, previous);
      return previous.html;
    });
    const dropped = before.get(first - 1);
    return dropped ? (this.rendered.set(first - 1, dropped), all) : all;
  }
}

/** ansi_up escapes the text, and adds only spans with classes and with colours that it has parsed. */
function rendered(text: string, colours: AnsiUp): Rendered {
  const end = Object.assign(beginning(), colours);
  return { text, html: end.ansi_to_html(text.replace(CONTROL, '')), end };
}
