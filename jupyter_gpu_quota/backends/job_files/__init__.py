"""The files of jobs in the state folder: layout, records, logs and outputs. Every backend that has them uses this."""
