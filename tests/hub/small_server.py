"""A notebook server that is up at once and does nothing: for tests of the hub, which asks no more of a server.

With a file ``wait`` in its folder it listens as soon as that file is gone.
"""

from __future__ import annotations

import os
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import jupyterhub


class Nothing(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("X-JupyterHub-Version", jupyterhub.__version__)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, format: str, *args: object) -> None:
        return


if __name__ == "__main__":
    while Path("wait").exists():
        time.sleep(0.02)
    where = urlsplit(os.environ["JUPYTERHUB_SERVICE_URL"])
    ThreadingHTTPServer((where.hostname or "127.0.0.1", where.port or 0), Nothing).serve_forever()
