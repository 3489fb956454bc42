#!/usr/bin/python3
"""Writes adamw-fixture.json: six AdamW steps in fp64, computed by numpy. Run it in this folder."""
import json

import numpy as np


def as_bf16(values):
    """Cut to bf16: its values are exact in fp32 and fp64."""
    bits = np.asarray(values, dtype=np.float32).view(np.uint32) & np.uint32(0xFFFF0000)
    return bits.view(np.float32)


random = np.random.default_rng(20)
beta1, beta2, epsilon, decay, rate, scale = 0.9, 0.98, 1e-8, 0.05, 2e-3, 0.125
weights = as_bf16(random.normal(0, 0.1, 13)).astype(np.float64)
fixture = {"beta1": beta1, "beta2": beta2, "epsilon": epsilon, "weightDecay": decay, "learningRate": rate,
           "gradientScale": scale, "initial": weights.tolist(), "steps": []}
first, second = np.zeros(13), np.zeros(13)
for step in range(1, 7):
    gradient = as_bf16(random.normal(0, 10.0 ** random.integers(-4, 2), 13)).astype(np.float64)
    scaled = gradient * scale
    first = beta1 * first + (1 - beta1) * scaled
    second = beta2 * second + (1 - beta2) * scaled**2
    weights = weights * (1 - rate * decay)
    weights = weights - rate * (first / (1 - beta1**step)) / (np.sqrt(second / (1 - beta2**step)) + epsilon)
    fixture["steps"].append({"gradient": gradient.tolist(), "weights": weights.tolist()})
with open("adamw-fixture.json", "w", encoding="utf-8") as file:
    json.dump(fixture, file, indent=1)
    file.write("\n")
