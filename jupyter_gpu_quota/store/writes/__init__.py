"""What each command and each observation changes, inside one transaction."""
