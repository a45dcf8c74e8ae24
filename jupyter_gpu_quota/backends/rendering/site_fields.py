"""A site's own fields of pods and containers, merged with ours. Pure.

Objects are merged field by field. Of lists whose items have a name, both parts are kept, and a name that both have is
refused. Any other value of the site replaces ours.
"""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

Json = dict[str, Any]

NAMED_BY: Mapping[str, str] = {
    "claims": "name",
    "containers": "name",
    "initContainers": "name",
    "resourceClaims": "name",
    "schedulingGates": "name",
    "volumeDevices": "devicePath",
    "volumeMounts": "mountPath",
    "volumes": "name",
}
"""Lists, and the field of their items that is unique."""

DEFAULTS = frozenset({"env", "envFrom"})
"""Lists of variables: Kubernetes takes the last one of a name, which is ours."""


class SiteFieldClash(Exception):
    """A site's field has a name that ours have, too; the message says which."""


def merged(ours: Json, site: Mapping[str, Any], setting: str) -> Json:
    """The site's fields merged into ours; ``setting`` is where they are set. Raises SiteFieldClash."""
    found = dict(ours)
    for name, value in site.items():
        before = found.get(name)
        if isinstance(before, dict) and isinstance(value, Mapping):
            found[name] = merged(before, value, setting)
        elif name in NAMED_BY and isinstance(value, Sequence):
            found[name] = both(before or (), value, name, setting)
        elif name in DEFAULTS and isinstance(value, Sequence):
            found[name] = [*value, *(before or ())]
        else:
            found[name] = value
    return found


def both(ours: Iterable[Any], site: Iterable[Any], name: str, setting: str) -> list[Any]:
    """The items of a list of ours, and then those of the site. Raises SiteFieldClash where both have a name."""
    ours, site = list(ours), list(site)
    key = NAMED_BY[name]
    taken = {_name(each, key) for each in ours}
    for each in site:
        if (found := _name(each, key)) in taken:
            raise SiteFieldClash(f"{setting} has an entry of {name} with the {key} {found}, which the pod has already")
    return [*ours, *site]


def without(variables: Iterable[Any], names: Collection[str]) -> list[Any]:
    """The variables of a container that have none of these names."""
    return [each for each in variables if _name(each, "name") not in names]


def _name(item: Any, key: str) -> str:
    """The name of an item; paths are compared without a trailing slash."""
    found = str(item.get(key, "") if isinstance(item, Mapping) else getattr(item, key, ""))
    return posixpath.normpath(found) if key.endswith("Path") else found
