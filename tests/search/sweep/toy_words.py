"""What is said of the toy in the faults of several tests."""

KNOWN_TO_TOY = (
    "learning_rate, batch_size, micro_batch_size, precision, optimizer, optimizer_implementation, "
    "optimizer_offload, step_in_backward, zero_grad_to_none, weight_decay, momentum, "
    "warmup_fraction, clip_norm, activation_checkpointing, prefetch, workers, pin_memory, "
    "world_size, sharding, gradient_as_bucket_view, seed, sequence_length, width, heads, dropout, "
    "activation, tied"
)
PRECISIONS = "'32-true', 'tf32', 'bf16-mixed', '16-mixed' or 'bf16-true'"
A_DIMENSION = (
    "must be a list of choices or a range such as {low: 1, high: 8} "
    "(a single value belongs under 'fixed')"
)
A_NAME = (
    "must begin with a letter or a digit and go on with those, '.', '_' or '-' "
    "(it names a folder), found"
)
A_RISK = "must be a probability above 0 and below 0.5, found"
