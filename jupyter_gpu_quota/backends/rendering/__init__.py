"""What a workload is told about its share: variables and manifests. Pure."""
