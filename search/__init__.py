"""Finds training configurations that fit the memory you have, and trains only those."""
