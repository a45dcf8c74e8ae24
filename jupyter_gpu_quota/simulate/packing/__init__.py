"""The packing experiment: tasks of a cluster trace offered to empty nodes."""
