/** The pools, devices and notebooks of the overview, kept up to date by the stream. */

import { whenSeen, type Changed, type Device, type Model, type Notebook, type Pool } from '@jupyter-gpu-quota/api';

export interface ClusterState {
  readonly pools: readonly Pool[];
  readonly devices: ReadonlyMap<string, Device>;
  /** The devices that the service has, null until the first of them are read. */
  readonly devicesTotal: number | null;
  readonly notebooks: readonly Notebook[];
  readonly isLoaded: boolean;
  readonly error: string;
}

const EMPTY: ClusterState = { pools: [], devices: new Map(), devicesTotal: null, notebooks: [], isLoaded: false, error: '' };
const REREAD_EVERY_MS = 3_000;

export class Cluster {
  private current = EMPTY;
  private readonly listeners = new Set<() => void>();
  /** Stops the read that is due. */
  private stopDue: (() => void) | undefined;
  private reading = false;
  private devicesAreDue = false;

  /** `withDevices`: false where only the notebooks are shown. */
  constructor(
    private readonly model: Model,
    private readonly withDevices = true,
  ) {}

  readonly snapshot = (): ClusterState => this.current;

  readonly subscribe = (listener: () => void): (() => void) => {
    this.listeners.add(listener);
    const end = this.model.subscribeToChanges(change => this.apply(change));
    void this.readAll();
    return () => {
      end();
      this.stopDue?.();
      this.stopDue = undefined;
      this.listeners.delete(listener);
    };
  };

  private async readAll(): Promise<void> {
    await Promise.all([this.readSums(), this.readDevices()]);
  }

  /** What has no event of its own: the sums of the pools, and which notebooks there are. */
  private async readSums(): Promise<void> {
    const { service } = this.model.transport;
    await this.guarded(async () => {
      const [pools, notebooks] = await Promise.all([service.pools(), service.notebooks()]);
      this.set({ ...this.current, pools, notebooks: notebooks.items, isLoaded: true, error: '' });
    });
  }

  private async readDevices(): Promise<void> {
    if (this.reading || !this.withDevices) {
      return;
    }
    this.reading = this.devicesAreDue = true;
    await this.guarded(async () => {
      const found = new Map<string, Device>();
      for (let offset = 0; ; ) {
        const page = await this.model.transport.service.devices(offset);
        page.items.forEach(device => found.set(device.id, device));
        offset += page.items.length;
        const isWhole = page.items.length === 0 || offset >= page.total;
        const devices = isWhole ? found : new Map([...this.current.devices, ...found]);
        this.set({ ...this.current, devices, devicesTotal: page.total });
        if (isWhole) {
          this.devicesAreDue = false;
          return;
        }
      }
    });
    this.reading = false;
  }

  private async guarded(read: () => Promise<void>): Promise<void> {
    try {
      await read();
    } catch (error) {
      this.set({ ...this.current, error: error instanceof Error ? error.message : String(error) });
      this.later();
    }
  }

  private apply(change: Changed | null): void {
    if (change === null) {
      void this.readAll();
      return;
    }
    if (change.devices.length > 0) {
      const devices = new Map(this.current.devices);
      change.devices.forEach(device => devices.set(device.id, device));
      const { devicesTotal } = this.current;
      this.set({ ...this.current, devices, devicesTotal: devicesTotal === null ? null : Math.max(devicesTotal, devices.size) });
    }
    if (change.notebooks.length > 0) {
      const changed = new Map(change.notebooks.map(notebook => [notebook.id, notebook]));
      this.set({ ...this.current, notebooks: this.current.notebooks.map(one => changed.get(one.id) ?? one) });
    }
    if (change.jobs.length > 0 || change.notebooks.length > 0 || change.devices.length > 0) {
      this.later();
    }
  }

  /** Read once more soon, unless nothing shows it any more; the devices, too, if the last read of them failed. */
  private later(): void {
    if (this.listeners.size > 0) {
      this.stopDue ??= whenSeen(() => {
        this.stopDue = undefined;
        void (this.devicesAreDue ? this.readAll() : this.readSums());
      }, REREAD_EVERY_MS);
    }
  }

  private set(next: ClusterState): void {
    this.current = next;
    this.listeners.forEach(listener => listener());
  }
}
