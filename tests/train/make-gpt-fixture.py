#!/usr/bin/python3
"""Writes gpt-fixture.json: training steps of a tiny GPT by PyTorch, in fp64. Run it in this folder.

An independent reference of a whole step: the architecture of tools/train (docs/TRAIN.md) from PyTorch's own parts,
its autograd, its clipping and its AdamW. It shares nothing with peal but the first weights, which both sides have from
first_weights' formula: multiples of 1/128, exact in bf16.

Two runs. "mixed" is what peal does: masters in fp64 (peal: fp32), weights that are their rounding to bf16, gradients of
these weights. "plain" never rounds anything: how far bf16 leads from what was wanted. Needs Debian's python3-torch
(1.13); the tests need only the file.
"""
import json

import torch
from torch.nn import functional

LAYERS, WIDTH, HEADS, CONTEXT, VOCABULARY, SEQUENCES = 2, 6, 2, 5, 9, 3
RATES = [0.01, 0.008, 0.006]
CLIP, DECAY, BETAS = 0.5, 0.1, (0.9, 0.99)
# Larger than most gradients: so that their size shows in the first step, and that an update is not more uncertain than
# they are. With a small epsilon it is about the rate times their sign.
EPSILON = 1e-2


def shapes():
    """Names and shapes in peal's order."""
    yield "embedding.token", (VOCABULARY, WIDTH)
    yield "embedding.position", (CONTEXT, WIDTH)
    for block in range(LAYERS):
        for name, shape in [("norm1.gain", (WIDTH,)), ("norm1.bias", (WIDTH,)),
                            ("attention.qkv.weight", (3 * WIDTH, WIDTH)), ("attention.qkv.bias", (3 * WIDTH,)),
                            ("attention.project.weight", (WIDTH, WIDTH)), ("attention.project.bias", (WIDTH,)),
                            ("norm2.gain", (WIDTH,)), ("norm2.bias", (WIDTH,)),
                            ("mlp.expand.weight", (4 * WIDTH, WIDTH)), ("mlp.expand.bias", (4 * WIDTH,)),
                            ("mlp.contract.weight", (WIDTH, 4 * WIDTH)), ("mlp.contract.bias", (WIDTH,))]:
            yield f"blocks.{block}.{name}", shape
    yield "norm.gain", (WIDTH,)
    yield "norm.bias", (WIDTH,)


def first_weights(index, name, shape):
    count = torch.Size(shape).numel()
    values = [((i * i * 7 + i * 37 + index * 101 + 11) % 61 - 30) / 128 for i in range(count)]
    gain = 1 if name.endswith("gain") else 0
    return torch.tensor(values, dtype=torch.float64).reshape(shape) + gain


def tokens(step, stream):
    return [[(step * 29 + s * 17 + t * t * 5 + t * 3 + stream * 7) % VOCABULARY for t in range(CONTEXT)]
            for s in range(SEQUENCES)]


def attention(x, p, prefix):
    """x: sequences x length x width."""
    count, length, _ = x.shape
    qkv = functional.linear(x, p[prefix + "qkv.weight"], p[prefix + "qkv.bias"])
    heads = [part.view(count, length, HEADS, WIDTH // HEADS).transpose(1, 2) for part in qkv.split(WIDTH, 2)]
    query, key, value = heads
    scores = query @ key.transpose(2, 3) / (WIDTH // HEADS) ** 0.5
    future = torch.ones(length, length, dtype=torch.bool).triu(1)
    attended = scores.masked_fill(future, float("-inf")).softmax(3) @ value
    joined = attended.transpose(1, 2).reshape(count, length, WIDTH)
    return functional.linear(joined, p[prefix + "project.weight"], p[prefix + "project.bias"])


def summed_loss(p, inputs, targets):
    def norm(x, prefix):
        return functional.layer_norm(x, (WIDTH,), p[prefix + "gain"], p[prefix + "bias"])

    x = functional.embedding(inputs, p["embedding.token"]) + p["embedding.position"]
    for block in range(LAYERS):
        prefix = f"blocks.{block}."
        x = x + attention(norm(x, prefix + "norm1."), p, prefix + "attention.")
        hidden = functional.linear(norm(x, prefix + "norm2."), p[prefix + "mlp.expand.weight"],
                                   p[prefix + "mlp.expand.bias"])
        x = x + functional.linear(functional.gelu(hidden, approximate="tanh"), p[prefix + "mlp.contract.weight"],
                                  p[prefix + "mlp.contract.bias"])
    logits = norm(x, "norm.") @ p["embedding.token"].t()
    return functional.cross_entropy(logits.reshape(-1, VOCABULARY), targets.reshape(-1), reduction="sum")


def train(rounds):
    masters = {name: torch.nn.Parameter(first_weights(index, name, shape))
               for index, (name, shape) in enumerate(shapes())}
    optimizer = torch.optim.AdamW(
        [{"params": [p for p in masters.values() if p.dim() > 1], "weight_decay": DECAY},
         {"params": [p for p in masters.values() if p.dim() == 1], "weight_decay": 0}], betas=BETAS, eps=EPSILON)
    steps = []
    for step, rate in enumerate(RATES):
        weights = {name: p.detach().bfloat16().double() if rounds else p.detach().clone()
                   for name, p in masters.items()}
        for weight in weights.values():
            weight.requires_grad_()
        loss = summed_loss(weights, torch.tensor(tokens(step, 0)), torch.tensor(tokens(step, 1)))
        loss.backward()
        for name, master in masters.items():
            master.grad = weights[name].grad / (SEQUENCES * CONTEXT)
        norm = torch.nn.utils.clip_grad_norm_(list(masters.values()), CLIP)
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        steps.append({"loss": loss.item(), "norm": norm.item(),
                      "gradients": {name: weight.grad.clone() for name, weight in weights.items()},
                      "masters": {name: master.detach().clone() for name, master in masters.items()},
                      "moments": {name: (optimizer.state[master]["exp_avg"].clone(),
                                         optimizer.state[master]["exp_avg_sq"].clone())
                                  for name, master in masters.items()}})
    return steps


def numbers(tensor):
    """Nine digits: as many as tell fp32 values apart."""
    return [float(f"{value:.9g}") for value in tensor.reshape(-1).tolist()]


def main():
    mixed, plain = train(True), train(False)
    fixture = {"layers": LAYERS, "width": WIDTH, "heads": HEADS, "context": CONTEXT, "vocabulary": VOCABULARY,
               "sequences": SEQUENCES, "rates": RATES, "clip": CLIP, "decay": DECAY, "beta1": BETAS[0],
               "beta2": BETAS[1], "epsilon": EPSILON,
               "inputs": [tokens(step, 0) for step in range(len(RATES))],
               "targets": [tokens(step, 1) for step in range(len(RATES))],
               "losses": [step["loss"] for step in mixed], "norms": [step["norm"] for step in mixed],
               "plainLosses": [step["loss"] for step in plain], "parameters": []}
    for name, shape in shapes():
        first, second = mixed[1]["moments"][name]
        fixture["parameters"].append({
            "name": name, "shape": shape, "gradient": numbers(mixed[0]["gradients"][name]),
            "mastersAfter1": numbers(mixed[0]["masters"][name]), "mastersAfter2": numbers(mixed[1]["masters"][name]),
            "moment1After2": numbers(first), "moment2After2": numbers(second)})
    lines = ["{"]
    for key, value in fixture.items():
        if key != "parameters":
            lines.append(f" {json.dumps(key)}: {json.dumps(value)},")
    lines.append(' "parameters": [')
    lines.append(",\n".join("  " + json.dumps(parameter) for parameter in fixture["parameters"]))
    lines.append(" ]}")
    with open("gpt-fixture.json", "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")


main()
