"""The tables of the database, derived from the declarations in :mod:`.tables`, as the newest migration leaves them."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    ForeignKey,
    Index,
    MetaData,
    Text,
    UniqueConstraint,
)
from sqlalchemy import (
    Table as SqlTable,
)

from .codecs import ColumnSpec
from .tables import TABLES, Table

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)
SQL_TYPES = {int: BigInteger, bool: Boolean, str: Text}


def _table(table: Table[Any]) -> SqlTable:
    columns = {column.name: _column(table, column) for column in table.columns}
    if table.in_cluster:  # D14: the default is this cluster and this hub
        columns |= {name: Column(name, Text, nullable=False, server_default="local") for name in ("cluster", "hub")}
    return SqlTable(
        table.name,
        metadata,
        *columns.values(),
        *(CheckConstraint(condition, name=name) for name, condition in table.checks.items()),
        *(UniqueConstraint(name) for name in table.unique),
        *(Index(None, *names) for names in table.sql_indexes),
    )


def _column(table: Table[Any], column: ColumnSpec) -> Column[Any]:
    parent = [ForeignKey(table.parents[column.name])] if column.name in table.parents else []
    is_key = column.name in table.keys
    return Column(
        column.name, SQL_TYPES[column.type], *parent, primary_key=is_key, nullable=column.null, autoincrement=False
    )


for _declared in TABLES:
    _table(_declared)
