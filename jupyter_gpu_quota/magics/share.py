"""The result of ``%gpu``: the user's notebook slices, and the quotas of their projects."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from ..client import Client
from ..client.display import Row, html_table, html_title, text_table
from ..core.amounts import gpu_text
from ..wire import NotebookView, ProjectPoolView, ProjectView

NOTEBOOK_COLUMNS = ("notebook", "project", "pool", "GPU", "state", "use", "idle state")
PROJECT_COLUMNS = ("project", "pool", "notebooks", "training", "queued", "fair share", "limit", "use")

Table = tuple[str, tuple[str, ...], list[Row]]


class Share:
    """The user's notebook slices, and the quotas of their projects, as tables."""

    def __init__(
        self, user: str, notebooks: list[NotebookView], projects: list[ProjectView], environment: Mapping[str, str]
    ) -> None:
        self.user, self.projects = user, projects
        self.notebooks = [each for each in notebooks if each.user == user]
        self.gpu_milli = _number(environment.get("GPU_QUOTA_MILLI"))
        self.memory_mib = _number(environment.get("GPU_QUOTA_MEMORY_MIB"))

    @classmethod
    def of(cls, client: Client) -> Share:
        """Read the share of the token's owner. Raises Refused and Unreachable."""
        return cls(client.me().name, client.notebooks(), client.projects(), os.environ)

    def _repr_html_(self) -> str:
        return "".join(html_title(title) + html_table(columns, rows) for title, columns, rows in self._tables())

    def __repr__(self) -> str:
        return "\n\n".join(f"{title}\n{text_table(columns, rows)}" for title, columns, rows in self._tables())

    def _tables(self) -> Iterator[Table]:
        yield (
            f"{self._kernel()}. All GPU slices of {self.user}:",
            NOTEBOOK_COLUMNS,
            [*map(_notebook_row, self.notebooks)],
        )
        rows = [_project_row(project, pool) for project in self.projects for pool in project.pools]
        yield "Projects", PROJECT_COLUMNS, rows

    def _kernel(self) -> str:
        if self.gpu_milli is None:
            return "This kernel has no GPU slice"
        memory = "" if self.memory_mib is None else f" with {self.memory_mib} MiB"
        return f"This kernel has {gpu_text(self.gpu_milli)} GPU{memory}"


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isdecimal() else None


def _use(milli: int | None) -> str:
    return "unknown" if milli is None else gpu_text(milli)


def _notebook_row(each: NotebookView) -> Row:
    idle = each.warning or (each.idle.message if each.idle else None)
    return each.id, each.project, each.pool, gpu_text(each.gpu_milli), each.shown_state, _use(each.utilised_milli), idle


def _project_row(project: ProjectView, pool: ProjectPoolView) -> Row:
    return (
        project.name,
        pool.pool,
        f"{gpu_text(pool.notebook_used_milli)} of {gpu_text(pool.notebook_milli)}",
        f"{gpu_text(pool.training_used_milli)} of {gpu_text(pool.training_milli)}",
        pool.queued_jobs,
        gpu_text(pool.fair_share_milli),
        None if pool.limit_milli is None else gpu_text(pool.limit_milli),
        _use(pool.utilised_milli),
    )
