"""What each route of the REST API does, a file for each resource."""
