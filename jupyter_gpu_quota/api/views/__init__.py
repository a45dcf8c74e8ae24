"""Records as the REST API shows them to one person."""
