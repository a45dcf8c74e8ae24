"""The pages of the service: templates, scripts and the handlers that render them."""
