"""The order of the stages, one function a command. It computes nothing."""
