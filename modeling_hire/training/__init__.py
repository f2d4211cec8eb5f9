"""Training: arguments, the trainer, and one run from data to a published checkpoint."""
