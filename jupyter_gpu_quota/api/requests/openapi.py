"""openapi.json, from the table that routes."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from ... import __version__
from ...backends.rendering.variables import SECRET_HEADER
from ...wire import DryRunView, ErrorView, Pagination
from ..access.permissions import Scope
from .call import Route

REF = "#/components/schemas/{model}"
SECURITY_SCHEMES = {
    "token": {"type": "http", "scheme": "bearer", "description": "A token of the hub."},
    "slice_secret": {
        "type": "apiKey",
        "in": "header",
        "name": SECRET_HEADER,
        "description": "The secret of the slice, from the answer to POST notebooks.",
    },
}


@cache
def openapi(routes: tuple[Route, ...], base_url: str) -> dict[str, Any]:
    """The OpenAPI 3.1 document of these routes; ``base_url`` is the service's prefix."""
    models: set[type[BaseModel]] = {ErrorView, Pagination, DryRunView}
    for route in routes:
        models |= {model for model in (route.takes, route.gives) if model is not None}
    modes = [(model, _mode(model)) for model in sorted(models, key=lambda model: model.__name__)]
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
            "securitySchemes": SECURITY_SCHEMES,
        },
    }


def _mode(model: type[BaseModel]) -> str:
    return "validation" if model.__name__.endswith(("Request", "Edit", "Batch")) else "serialization"


def _shown(path: str) -> str:
    return re.sub(r"\{(\w+)[^}]*\}", r"{\1}", path)


def _operation(route: Route) -> dict[str, Any]:
    refused = {"description": "Refused or failed.", "content": _json(_ref(ErrorView))}
    given = {"description": route.summary, "content": {route.media_type: {"schema": _given(route)}}}
    operation: dict[str, Any] = {
        "summary": route.summary,
        "operationId": f"{route.method.lower()}_{re.sub(r'[^a-z0-9]+', '_', _shown(route.path)).strip('_')}",
        "parameters": _parameters(route),
        "responses": {
            str(route.status): {"description": "Done."} if route.status == 204 else given,
            "default": refused,
        },
    }
    if route.rate_limited:
        header = {"Retry-After": {"description": "Seconds to wait.", "schema": {"type": "integer"}}}
        too_often = {"description": "This person's changes come too often.", "headers": header}
        operation["responses"]["429"] = refused | too_often
    if route.takes is not None:
        operation["requestBody"] = {"required": True, "content": _json(_ref(route.takes))}
    if route.path == "bundles/{digest}" and route.method == "PUT":
        content = {"application/gzip": {"schema": {"type": "string", "format": "binary"}}}
        operation["requestBody"] = {"required": True, "content": content}
    if route.scope is Scope.OPEN:
        operation["security"] = []
    if route.by_secret:
        operation["security"] = [{"token": []}, {"slice_secret": []}]
    return operation | {"x-scope": route.scope.value}


def _parameters(route: Route) -> list[dict[str, Any]]:
    parts = re.findall(r"\{(\w+)(?:\.\.\.)?(?::([\w|]+))?\}", route.path)
    schemas = [(name, {"type": "string", **({"enum": words.split("|")} if words else {})}) for name, words in parts]
    inside = [{"name": name, "in": "path", "required": True, "schema": schema} for name, schema in schemas]
    return inside + [{"name": name, "in": "query", "schema": {"type": "string"}} for name in route.query]


def _given(route: Route) -> dict[str, Any]:
    if route.gives is None:
        return {"type": "object"} if route.media_type == "application/json" else {"type": "string"}
    if not route.is_listing:
        return _ref(route.gives)
    properties = {"items": {"type": "array", "items": _ref(route.gives)}, "_pagination": _ref(Pagination)}
    return {"type": "object", "properties": properties, "required": [*properties]}


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _ref(model: type[BaseModel]) -> dict[str, Any]:
    return {"$ref": REF.format(model=model.__name__)}
