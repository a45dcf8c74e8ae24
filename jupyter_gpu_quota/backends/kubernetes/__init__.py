"""The backend of a Kubernetes cluster: jobs as pods on the devices that our scheduler chose."""
