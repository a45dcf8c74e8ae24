"""The settings that the chart's values accept, from the code: `python docs/_scripts/chart_settings.py`.

``make docs`` runs it. The schema is committed; a test compares it.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import traitlets

from jupyter_gpu_quota.settings import GPUQuota

CHART = Path(__file__).parents[2] / "helm/jupyter-gpu-quota"
SCHEMA = CHART / "values.schema.json"
TYPES = {
    traitlets.Bool: "boolean", traitlets.Dict: "object", traitlets.Int: "integer", traitlets.List: "array",
    traitlets.Unicode: "string",
}  # fmt: skip
OF_CLUSTER = "kubernetes_"
"""Before the settings of each further cluster, which the chart takes without it."""


def generated() -> str:
    """The schema with the settings of the code that the service reads; the hub reads the others from its own file."""
    schema = json.loads(SCHEMA.read_text())
    properties = {name: _property(trait) for name, trait in sorted(GPUQuota.class_own_traits(service=True).items())}
    further = {name.removeprefix(OF_CLUSTER): one for name, one in properties.items() if name.startswith(OF_CLUSTER)}
    further = {name: one for name, one in further.items() if name != "clusters"} | {
        "state_dir": properties["state_dir"]
    }
    # The templates refuse what the chart sets itself, and say where else it is set.
    set_by_chart = re.findall(r'^  "([a-z_]+)" ', (CHART / "templates/_helpers.tpl").read_text(), re.MULTILINE)
    own: dict[str, Any] = {name: {} for name in set_by_chart if name in properties}
    schema["properties"]["settings"] = _object(properties | own)
    schema["properties"]["clusters"]["items"]["properties"]["settings"] = _object(further)
    return json.dumps(schema, indent=2) + "\n"


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _property(trait: traitlets.TraitType[Any, Any]) -> dict[str, Any]:
    if isinstance(trait, traitlets.Enum):
        return {"enum": list(trait.values)}
    found: dict[str, Any] = {"type": TYPES[type(trait)]}
    for name, bound in (("minimum", "min"), ("maximum", "max")):
        if (value := getattr(trait, bound, None)) is not None:
            found[name] = value
    return found


if __name__ == "__main__":
    SCHEMA.write_text(generated())
