"""The changes that requests, plans and facts make, each inside one transaction."""
