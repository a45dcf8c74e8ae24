"""The handlers of the REST API's routes, a file for each resource."""
