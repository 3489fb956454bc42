#!/usr/bin/python3
"""Writes difference-fixture.json: the gradients of a tiny GPT as finite differences of its loss, by numpy in fp64. Run
it in this folder.

No derivative is written down here or taken from a library: the loss is docs/TRAIN.md's model as formulas, and each
gradient is (loss(p + h) - loss(p - h)) / 2h. With h = 1e-5 the rounding of a loss of about 15 makes 1e-10 of that, and
what a difference leaves out about as much; main() compares with twice the h. Weights are whole numbers of 128ths, exact
in fp32. Needs Debian's python3-numpy; the test needs only the file.
"""
import json

import numpy

LAYERS, WIDTH, HEADS, CONTEXT, VOCABULARY, SEQUENCES = 2, 6, 3, 4, 5, 2
H = 1e-5
PARTS = 128


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


def norm(x, gain, bias):
    centred = x - x.mean(axis=-1, keepdims=True)
    return centred / numpy.sqrt((centred ** 2).mean(axis=-1, keepdims=True) + 1e-5) * gain + bias


def softmax(x):
    exponentials = numpy.exp(x - x.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def attend(qkv):
    """qkv: sequences x length x (queries, keys, values), each of all heads."""
    count, length, _ = qkv.shape
    query, key, value = qkv.reshape(count, length, 3, HEADS, WIDTH // HEADS).transpose(2, 0, 3, 1, 4)
    scores = numpy.einsum("bhti,bhsi->bhts", query, key) / numpy.sqrt(WIDTH // HEADS)
    scores += numpy.where(numpy.tri(length), 0, -numpy.inf)
    return numpy.einsum("bhts,bhsi->bthi", softmax(scores), value).reshape(count, length, WIDTH)


def gelu(x):
    return 0.5 * x * (1 + numpy.tanh(numpy.sqrt(2 / numpy.pi) * (x + 0.044715 * x ** 3)))


def summed_loss(p, inputs, targets):
    x = p["embedding.token"][inputs] + p["embedding.position"]
    for block in range(LAYERS):
        def at(name, prefix=f"blocks.{block}."):
            return p[prefix + name]

        def linear(y, name, at=at):
            return y @ at(name + ".weight").T + at(name + ".bias")

        x = x + linear(attend(linear(norm(x, at("norm1.gain"), at("norm1.bias")), "attention.qkv")), "attention.project")
        x = x + linear(gelu(linear(norm(x, at("norm2.gain"), at("norm2.bias")), "mlp.expand")), "mlp.contract")
    probabilities = softmax(norm(x, p["norm.gain"], p["norm.bias"]) @ p["embedding.token"].T)
    return -numpy.log(numpy.take_along_axis(probabilities, targets[..., None], axis=-1)).sum()


def differences(p, inputs, targets, h):
    gradients = {}
    for name, values in p.items():
        gradients[name] = numpy.zeros_like(values)
        for place in numpy.ndindex(values.shape):
            before = values[place]
            values[place] = before + h
            above = summed_loss(p, inputs, targets)
            values[place] = before - h
            below = summed_loss(p, inputs, targets)
            values[place] = before
            gradients[name][place] = (above - below) / (2 * h)
    return gradients


def main():
    random = numpy.random.RandomState(20261201)
    inputs, targets = random.randint(0, VOCABULARY, (2, SEQUENCES, CONTEXT))
    whole = {name: random.randint(-40, 41, shape) + (PARTS if name.endswith("gain") else 0) for name, shape in shapes()}
    p = {name: values / PARTS for name, values in whole.items()}
    gradients, wider = differences(p, inputs, targets, H), differences(p, inputs, targets, 2 * H)
    furthest = max(abs(gradients[name] - wider[name]).max() for name in p)
    assert furthest < 5e-9, furthest
    lines = [f' "{key}": {json.dumps(value)},' for key, value in
             {"layers": LAYERS, "width": WIDTH, "heads": HEADS, "context": CONTEXT, "vocabulary": VOCABULARY,
              "sequences": SEQUENCES, "inputs": inputs.ravel().tolist(), "targets": targets.ravel().tolist(),
              "loss": summed_loss(p, inputs, targets), "parts": PARTS}.items()]
    parameters = [{"name": name, "values": values.ravel().tolist(),
                   "gradient": [float(f"{value:.9g}") for value in gradients[name].ravel()]}
                  for name, values in whole.items()]
    lines += [' "parameters": [', ",\n".join("  " + json.dumps(parameter) for parameter in parameters), " ]"]
    with open("difference-fixture.json", "w", encoding="utf-8") as file:
        file.write("\n".join(["{", *lines, "}"]) + "\n")
    print(f"with twice the h at most {furthest:.1e} away")


main()
