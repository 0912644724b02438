"""Measures. Each command prints what it measured, beside a floor or a peer measured in the same run."""
