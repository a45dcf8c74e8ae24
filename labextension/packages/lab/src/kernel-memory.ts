/** Which kernel each notebook had when its page was loaded last. The browser keeps it, and users of a hub may share the browser. */

const PREFIX = 'jupyter-gpu-quota:kernel:';

export class KernelMemory {
  /** `server`: the address of the user's server, since the browser keeps one storage for all users of a hub. */
  constructor(
    private readonly server: string,
    private readonly storage: Storage = window.localStorage,
  ) {}

  /** The id of the kernel that the notebook had; null if none is known. */
  kernelOf(path: string): string | null {
    try {
      return this.storage.getItem(this.key(path));
    } catch {
      return null; // The storage is blocked.
    }
  }

  remember(path: string, kernel: string | undefined): void {
    try {
      kernel === undefined ? this.storage.removeItem(this.key(path)) : this.storage.setItem(this.key(path), kernel);
    } catch {
      // The storage is full or blocked: after a reload the notebook does not say that its kernel was shut down.
    }
  }

  private key(path: string): string {
    return `${PREFIX}${this.server}:${path}`;
  }
}
