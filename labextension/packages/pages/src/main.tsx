import { createRoot } from 'react-dom/client';

import '@jupyter-gpu-quota/components/style/base.css';
import '../style/pages.css';

import { App } from './App';
import { frameOf } from './frame';

const root = document.getElementById('app');
if (root !== null) {
  createRoot(root).render(<App frame={frameOf(root)} />);
}
