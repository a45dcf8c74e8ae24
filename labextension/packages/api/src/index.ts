export type { components, paths } from './schema';
export * from './service';
export * from './events';
export * from './shared';
export * from './state';
export * from './model';
export * from './permissions';
export * from './transport';
export * from './log';
