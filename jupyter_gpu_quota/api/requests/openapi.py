"""openapi.json, from the table that routes."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from ... import __version__
from ...wire import DryRunView, ErrorView, Pagination
from ..access.permissions import Scope
from .resource import Route

REF = "#/components/schemas/{model}"


@cache
def openapi(routes: tuple[Route, ...], base_url: str) -> dict[str, Any]:
    """The OpenAPI 3.1 document of these routes; ``base_url`` is the service's prefix."""
    models: set[type[BaseModel]] = {ErrorView, Pagination, DryRunView}
    for route in routes:
        models |= {model for model in (route.takes, route.gives) if model is not None}
    modes = [(model, "serialization" if _is_view(model) else "validation") for model in sorted(models, key=_name)]
    _, schemas = models_json_schema(modes, ref_template=REF)  # type: ignore[arg-type]
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(f"/{_shown(route.path)}", {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "GPU quota",
            "version": __version__,
            "description": "Notebook slices and the training queue.",
        },
        "servers": [{"url": f"{base_url}api/v1"}],
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": schemas.get("$defs", {}),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer", "description": "A token of the hub."}},
        },
    }


def _name(model: type[BaseModel]) -> str:
    return model.__name__


def _is_view(model: type[BaseModel]) -> bool:
    return not model.__name__.endswith(("Request", "Edit", "Batch"))


def _shown(path: str) -> str:
    return re.sub(r"\{(\w+)[^}]*\}", r"{\1}", path)


def _operation(route: Route) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "summary": route.says,
        "operationId": f"{route.method.lower()}_{re.sub(r'[^a-z0-9]+', '_', _shown(route.path)).strip('_')}",
        "parameters": _parameters(route),
        "responses": {str(route.status): _answer(route), "default": _error()},
    }
    if route.paced:
        operation["responses"]["429"] = _too_often()
    if route.takes is not None:
        operation["requestBody"] = {"required": True, "content": _content(_ref(route.takes), "application/json")}
    if route.path == "bundles/{digest}" and route.method == "PUT":
        schema = {"type": "string", "format": "binary"}
        operation["requestBody"] = {"required": True, "content": _content(schema, "application/gzip")}
    if route.scope is Scope.OPEN:
        operation["security"] = []
    return operation | {"x-scope": route.scope.value}


def _parameters(route: Route) -> list[dict[str, Any]]:
    parts = re.findall(r"\{(\w+)(?:\.\.\.)?(?::([\w|]+))?\}", route.path)
    inside = [
        {
            "name": name,
            "in": "path",
            "required": True,
            "schema": {"type": "string", **({"enum": words.split("|")} if words else {})},
        }
        for name, words in parts
    ]
    return inside + [{"name": name, "in": "query", "schema": {"type": "string"}} for name in route.query]


def _answer(route: Route) -> dict[str, Any]:
    if route.status == 204:
        return {"description": "Done."}
    return {"description": route.says, "content": _content(_given(route), route.media_type)}


def _given(route: Route) -> dict[str, Any]:
    if route.gives is None:
        return {"type": "object"} if route.media_type == "application/json" else {"type": "string"}
    if not route.listing:
        return _ref(route.gives)
    items = {"type": "array", "items": _ref(route.gives)}
    return {
        "type": "object",
        "properties": {"items": items, "_pagination": _ref(Pagination)},
        "required": ["items", "_pagination"],
    }


def _content(schema: dict[str, Any], media_type: str) -> dict[str, Any]:
    return {media_type: {"schema": schema}}


def _ref(model: type[BaseModel]) -> dict[str, Any]:
    return {"$ref": REF.format(model=model.__name__)}


def _too_often() -> dict[str, Any]:
    header = {"Retry-After": {"description": "Seconds to wait.", "schema": {"type": "integer"}}}
    return _error() | {"description": "This person's changes come too often.", "headers": header}


def _error() -> dict[str, Any]:
    return {"description": "Refused or failed.", "content": _content(_ref(ErrorView), "application/json")}
