"""Fair share, the amounts in force, and whether quotas fit their pools."""
