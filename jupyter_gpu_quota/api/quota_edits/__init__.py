"""What an edit of the quota file would change, before it is applied."""
