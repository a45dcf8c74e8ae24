import '@jupyter-gpu-quota/components/style/base.css';
