"""What a trained model becomes before it is deployed: smaller, and measured as it would serve.

Left to others: training itself, measuring memory, and running trials.
"""
