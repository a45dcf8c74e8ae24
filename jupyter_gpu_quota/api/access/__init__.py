"""Authentication, access rules, rate limits and streams."""
