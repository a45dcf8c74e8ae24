import { defineConfig } from 'vite';

/** From the compiled modules to the files that the service serves; its templates name them. */
export default defineConfig({
  base: './',
  define: { 'process.env.NODE_ENV': '"production"' },
  publicDir: false,
  build: {
    outDir: '../../../jupyter_gpu_quota/api/pages/static/built',
    emptyOutDir: true,
    cssCodeSplit: false,
    modulePreload: false,
    rolldownOptions: {
      input: { pages: 'lib/main.js', theme: 'lib/theme.js' },
      output: { entryFileNames: '[name].js', assetFileNames: 'pages[extname]', chunkFileNames: '[name].js' },
    },
  },
});
