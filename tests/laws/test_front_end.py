"""The front end's types are those of the service's API."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

from jupyter_gpu_quota import __version__

ROOT = Path(__file__).parents[2]
API = ROOT / "labextension" / "packages" / "api"


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", API / "generate.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_types_of_the_front_end_are_generated_from_the_present_api() -> None:
    made = generator()
    with (API / "src" / "schema.ts").open() as schema:
        assert schema.readline() == made.first_line(made.document()), "run `npm run generate` in labextension"


def test_the_extension_has_the_release_of_the_package() -> None:
    """`jupyter labextension list` shows it."""
    assert json.loads((API.parent / "lab" / "package.json").read_text())["version"] == __version__
