"""Draws the scaling curves: JSON on standard input, a PNG where it says."""

import json
import sys

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt

data = json.load(sys.stdin)
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), sharey=True)
for name, points in data["curves"].items():
    left.plot(*zip(*points, strict=True), marker="o", label=name)
left.set(xscale="log", yscale="log", xlabel="turns of the conversation", ylabel="search, p95 in ms")
left.legend(frameon=False)
right.plot(*zip(*data["totals"], strict=True), marker="o")
right.set(xscale="log", xlabel="turns in the store, 1,000 in the conversation (SQLite)")
for axes in (left, right):
    axes.grid(visible=True, alpha=0.3)
figure.tight_layout()
figure.savefig(data["target"], dpi=110)
