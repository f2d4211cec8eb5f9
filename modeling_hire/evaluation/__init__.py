"""Scoring predictions and writing them down; nothing here needs a download."""
