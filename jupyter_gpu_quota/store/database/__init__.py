"""Rows in a SQL database or in memory: tables, codecs, transactions, errors."""
