"""The backfill reservation of a pool: who has it, its planned start, and who may start on its devices meanwhile."""
