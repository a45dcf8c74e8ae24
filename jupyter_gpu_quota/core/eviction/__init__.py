"""Work that must leave its devices: drains, deadlines, removed projects and pools, devices that are out."""
