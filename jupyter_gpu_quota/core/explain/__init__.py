"""Why a workload waits, what would change that, and what another policy would do."""
