"""What would happen: traces and generated days played through the shipped controller and core in virtual time."""
