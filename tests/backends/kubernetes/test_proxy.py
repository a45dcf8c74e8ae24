"""The connection to an API server: the proxy of the environment is used, and looked for once."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from jupyter_gpu_quota.backends.kubernetes.client.api_server import ApiServer


def kubeconfig(folder: Path, server: str = "https://cluster.example:6443") -> str:
    cluster = {"server": server, "insecure-skip-tls-verify": True}
    config = {
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": cluster}], "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    }  # fmt: skip
    path = folder / "kubeconfig"
    path.write_text(json.dumps(config))
    return str(path)


@pytest.mark.parametrize(
    ("variables", "proxy"),
    [
        pytest.param({}, None, id="none"),
        pytest.param({"https_proxy": "http://proxy:3128"}, "http://proxy:3128", id="one for https"),
        pytest.param({"http_proxy": "http://proxy:3128"}, None, id="one for http alone"),
        pytest.param({"https_proxy": "http://proxy:3128", "no_proxy": "cluster.example"}, None, id="not for this host"),
    ],
)
def test_the_proxy_of_the_environment_is_looked_for_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], proxy: str | None
) -> None:
    for name in ("http_proxy", "https_proxy", "no_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    async def opened() -> tuple[str | None, bool]:
        server = ApiServer(kubeconfig(tmp_path))
        await server.open()
        assert server._session is not None
        try:
            return server._proxy, server._session.trust_env
        finally:
            await server.close()

    assert asyncio.run(opened()) == (proxy, False)
