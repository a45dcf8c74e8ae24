"""The example of the reference page has every key of the quota file that is enforced, and the reader accepts it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from jupyter_gpu_quota import quotafile
from tests.cli.commands import run
from tests.docs.pages import ROOT, blocks

TEXT = next(block.text for block in blocks(ROOT / "docs/reference/quota-file.md") if block.argument == "every-key.yaml")


def is_enforced(schema: Mapping[str, Any]) -> bool:
    """Whether a key may have a value in this release."""
    return "cannot be enforced" not in str(schema) and schema.get("enum") != [None]


def keys(schema: Mapping[str, Any], section: Mapping[str, Any], name: str, value: Any) -> Iterator[tuple[str, str]]:
    """Each key that a value uses, with the section of the schema that declares it."""
    if "$ref" in section:
        name = section["$ref"].rpartition("/")[2]
        section = schema["$defs"][name]
    for option in section.get("anyOf", ()):
        if option.get("type") != "null":
            yield from keys(schema, option, name, value)
    if isinstance(value, list):
        for one in value:
            yield from keys(schema, section.get("items", {}), name, one)
    for key, inner in value.items() if isinstance(value, dict) else ():
        known = section.get("properties", {}).get(key)
        if known is not None:
            yield name, key
        named_freely = next(iter(section.get("patternProperties", {}).values()), {})
        yield from keys(schema, known or named_freely, name, inner)


def declared(schema: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Each key of the schema that this release enforces."""
    sections = {"": schema} | schema["$defs"]
    for name, section in sections.items():
        yield from ((name, key) for key, of in section["properties"].items() if is_enforced(of))


def test_the_example_has_every_key_that_is_enforced() -> None:
    assert isinstance(quotafile.parse(TEXT), quotafile.QuotaFile), quotafile.parse(TEXT)
    schema = json.loads(run("schema", "quota").stdout)
    assert set(declared(schema)) - set(keys(schema, schema, "", yaml.safe_load(TEXT))) == set()
