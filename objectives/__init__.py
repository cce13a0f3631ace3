"""Models people train, one readable file each, and the real data they train on."""
