"""What to keep: the front, the pick and its export. Left to others: running and drawing."""
