"""The search space and the sweep file: what may be tried. Left to others: trying it."""
