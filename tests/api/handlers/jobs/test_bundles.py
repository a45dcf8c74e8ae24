"""Bundles that one user sends many of: their checks and their bytes are limited."""

from __future__ import annotations

import hashlib
import threading

import pytest

from jupyter_gpu_quota.bundle.store import Incoming
from tests.api.world import Reply, ServiceWorld
from tests.bundle.test_bundle import tar
from tests.patience import PATIENCE_S, until


def name_of(content: bytes) -> str:
    return f"bundles/{hashlib.sha256(content).hexdigest()}"


def test_the_bundles_of_one_user_are_checked_one_by_one_and_those_of_others_meanwhile(
    world: ServiceWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked, may_end, finish, replies = list[str](), threading.Event(), Incoming.finish, list[Reply]()

    def held(incoming: Incoming) -> int:
        checked.append(incoming._digest)
        may_end.wait()
        return finish(incoming)

    contents = [tar((str(number), b"x")) for number in range(3)]

    def send(content: bytes) -> None:
        replies.append(world.call("PUT", name_of(content), raw=content))

    senders = [threading.Thread(target=send, args=[content]) for content in contents]
    monkeypatch.setattr(Incoming, "finish", held)
    try:
        for sender in senders:
            sender.start()
        until(lambda: checked and world.services.arriving.total() == sum(map(len, contents)))
        monkeypatch.setattr(Incoming, "finish", finish)
        assert world.call("PUT", name_of(tar(("o", b"x"))), "olga", raw=tar(("o", b"x"))).status == 201
        assert len(checked) == 1
    finally:
        may_end.set()
        for sender in senders:
            sender.join()
    assert [reply.status for reply in replies] == [201] * len(contents)


def test_a_bundle_whose_volume_hangs_delays_no_other_request(
    world: ServiceWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, may_end, write, replies = threading.Event(), threading.Event(), Incoming.write, list[Reply]()

    def held(incoming: Incoming, data: bytes) -> None:
        began.set()
        may_end.wait()
        write(incoming, data)

    content = tar(("a", b"x"))
    sender = threading.Thread(target=lambda: replies.append(world.call("PUT", name_of(content), raw=content)))
    monkeypatch.setattr(Incoming, "write", held)
    try:
        sender.start()
        assert began.wait(PATIENCE_S)
        assert world.get("jobs").status == 200
    finally:
        may_end.set()
        sender.join()
    assert [reply.status for reply in replies] == [201]


def test_a_bundle_that_one_has_is_not_stored_again(world: ServiceWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    content = tar(("a", b"x"))
    assert world.call("PUT", name_of(content), raw=content).status == 201
    began, begin, bundles = list[str](), world.services.bundles.begin, world.services.bundles

    def begun(digest: str) -> Incoming:
        began.append(digest)
        return begin(digest)

    monkeypatch.setattr(bundles, "begin", begun)
    bob = world.run(world.services.store_view.user_id("bob"))
    world.services.arriving[bob] = world.settings.bundles_limit_mib << 20
    again = world.call("PUT", name_of(content), raw=content)
    assert (again.status, again.json["existed"], again.json["size_bytes"], began) == (200, True, len(content), [])
    other = tar(("b", b"x"))
    assert world.call("PUT", name_of(other), raw=other).json["reason"] == "bundles_full"
    bundles.path(name_of(content).removeprefix("bundles/")).unlink()
    world.services.arriving[bob] = 0
    assert world.call("PUT", name_of(content), raw=content).status == 200 and len(began) == 1
