"""The sweep file that `paretune init` writes."""

STARTER = """\
# A sweep for paretune. Try it as it is:
#   paretune plan THIS_FILE      says what fits, and trains nothing
#   paretune sweep THIS_FILE     trains what fits, and logs to MLflow
# Every field is described in docs/sweep-file.md; `paretune schema` prints the JSON Schema.

# What the sweep is called: in commands, in MLflow, and as the folder of its state.
name: my-sweep
# description: what it is for

# What to train: an objective by its dotted path, from any package or from the working folder.
# Also a function of your own; or `command:` in its place (docs/own-objective.md has both).
objective: objectives.language_model:LanguageModel

# Handed to the objective. The corpus is `python-stdlib` (real text that every Python has), or the
# path of your own text file, folder of text files, or token array (.bin, .npy).
data:
  corpus: python-stdlib

# What to search. A list is a choice; low and high make a range, `log: true` on a log scale.
space:
  learning_rate: {low: 1e-4, high: 1e-2, log: true}
  batch_size: [8, 16, 32, 64]          # samples for one optimizer step
  sequence_length: [64, 128, 256]      # bytes
  # precision: [fp32, bf16-mixed]      # also tf32, 16-mixed, bf16-true
  # activation_checkpointing: [true, false]
  # weight_decay: {low: 0.0, high: 0.1}

# One value for all trials. What stands neither here nor in `space` keeps its default.
fixed:
  width: 64
  depth: 2
  micro_batch_size: equal              # no accumulation; a number; or auto: the largest that fits
  # optimizer: adamw                   # also adam, sgd

# What is done to each trained model, which is then judged and measured as it would be deployed.
# compression:
#   pruned_channels: [0, 0.5]          # share of hidden units that are taken out
#   quantization: [none, int8-dynamic, int8-weight-only]

# What one trial may use. Without a budget: its share of what is here.
memory:
  # budget: 8 GiB
  gate: true                           # refuse what is predicted not to fit, before it starts

# What each trial is given.
trial:
  tokens: 60_000                       # every finished trial trains on as many
  # time_limit: 10 min

# What counts, and which way is better. Several make a Pareto front.
objectives:
  bits_per_byte: min
  tokens_per_second: max
  peak_memory: min

# Trials to train; what the memory gate refuses does not count.
trials: 20
seed: 0

# resources:
#   cpus: 1                            # cores for each trial
#   concurrent: 2                      # the most trials at once
# stop_after_failures: 5               # as many failures of one kind in a row end the sweep
# refusals: 2000                       # as many refusals end it; default: 100 for each trial
"""
"""The text of a commented sweep file that can be run as it is."""
