"""What will fit, and what did: torch and NumPy only. Left to others: what to do about it."""
