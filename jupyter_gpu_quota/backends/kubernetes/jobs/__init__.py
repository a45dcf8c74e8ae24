"""Jobs as pods: orders, records, facts."""
