"""What happened: the only room with Ray and Optuna.

Left to others: judging memory, logging, choosing.
"""
