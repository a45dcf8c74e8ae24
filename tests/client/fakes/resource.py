"""The base of the fake's routes: the failures of a network, and answers with the real wire models."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError
from tornado import web

from jupyter_gpu_quota import wire
from tests.client.fakes.world import (
    OFTEN,
    PREFIX,
    TOKEN,
    World,
)


def long_texts(value: Any) -> Any:
    """The value with each text of several words made long, and the text of a quota file unchanged."""
    match value:
        case dict():
            return {key: each if key == "text" else long_texts(each) for key, each in value.items()}
        case list():
            return [long_texts(each) for each in value]
        case str() if " " in value:
            return f"{value} {'and a sentence may have many words ' * 12}".strip()
        case _:
            return value


class Fake(web.RequestHandler):
    def initialize(self, world: World) -> None:
        self.world = world

    def prepare(self) -> None:
        world, path = self.world, self.request.path.removeprefix(PREFIX)
        query = {key: values[-1].decode() for key, values in self.request.query_arguments.items()}
        world.seen.append((self.request.method or "", path, query, self.request.body))
        self.query = query
        if world.breaks:
            world.breaks -= 1
            assert self.request.connection is not None
            self.request.connection.stream.close()  # type: ignore[attr-defined]
            raise web.Finish
        if world.away:
            world.away -= 1
            self.set_status(503)
            self.finish("<html>Service Unavailable</html>")
        elif world.unready:
            world.unready -= 1
            self.refuse(503, "store_unavailable", "The database is not open yet. Running jobs continue; try again.")
        elif self.request.headers.get("Authorization") != f"token {TOKEN}" and path != "version":
            self.refuse(401, "not_authenticated", "The hub does not know this token.")
        elif world.often:
            world.often -= 1
            for name, value in OFTEN.items():
                self.set_header(name, value)
            self.refuse(429, "too_often", "ann exceeded the rate limit of 50 changes per second.")
        elif world.refuse:
            self.refuse(world.refuse.status, world.refuse.reason, world.refuse.message)

    def refuse(self, status: int, reason: str, message: str) -> None:
        self.set_status(status)
        self.finish(self.lengthened(wire.ErrorView(status=status, message=message, reason=reason).model_dump()))

    def lengthened(self, body: dict[str, Any]) -> dict[str, Any]:
        """The body as it is, or with long sentences."""
        return long_texts(body) if self.world.long_sentences else body

    def answer(self, body: BaseModel, status: int = 200) -> None:
        self.set_status(status)
        self.finish(json.dumps(self.lengthened(body.model_dump(mode="json") | self.world.extra)))

    def items(self, found: Sequence[Any], view: Callable[[Any], BaseModel] = lambda each: each) -> None:
        offset, limit = int(self.query.get("offset", 0)), int(self.query.get("limit", 100))
        page = [view(each).model_dump(mode="json") for each in found[offset : offset + limit]]
        pagination = {"offset": offset, "limit": limit, "total": len(found)}
        self.finish({"items": self.lengthened({"page": page})["page"], "_pagination": pagination})

    def body(self, model: type[Any]) -> Any:
        try:
            return model.model_validate_json(self.request.body)
        except ValidationError as error:
            self.refuse(400, "invalid", str(error.errors()[0]["msg"]))
            raise web.Finish from None

    def job(self, id_: str) -> wire.JobDetail:
        if id_ not in self.world.jobs:
            self.refuse(404, "not_found", f"There is no job {id_!r}, or you may not see it. Check the name.")
            raise web.Finish
        steps = self.world.script.get(id_)
        if steps:
            self.world.jobs[id_] = self.world.jobs[id_].model_copy(update=steps.pop(0))
        return self.world.jobs[id_]
