"""Which enforcement each share has, whether it is strong enough, and what to do with work above its share."""
