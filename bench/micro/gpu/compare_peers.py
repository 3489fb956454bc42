#!/usr/bin/env python3
"""Compares peal on one GPU with what else is installed: AdamW with PyTorch's fused one, single-rank all-reduce
with NCCL. Prints one line for each; says what is not installed. Exit status 1 if results differ by more than
rounding. Run by tools/gpu-check.

    compare_peers.py LIBPEAL
"""
import ctypes
import sys

PEAL_BFLOAT16, PEAL_FLOAT32, PEAL_SUM = 9, 7, 0
NCCL_FLOAT32, NCCL_SUM = 7, 0


class Control(ctypes.Structure):
    _fields_ = [("step", ctypes.c_uint64), ("learningRate", ctypes.c_double), ("gradientScale", ctypes.c_double),
                ("nonFinite", ctypes.c_uint64), ("reserved", ctypes.c_uint64)]


class Segment(ctypes.Structure):
    _fields_ = [("end", ctypes.c_uint64), ("weightDecay", ctypes.c_double)]


class Adamw(ctypes.Structure):
    _fields_ = [("beta1", ctypes.c_double), ("beta2", ctypes.c_double), ("epsilon", ctypes.c_double),
                ("master", ctypes.c_void_p), ("moment1", ctypes.c_void_p), ("moment2", ctypes.c_void_p),
                ("count", ctypes.c_uint64), ("segments", ctypes.c_void_p), ("segmentCount", ctypes.c_uint64),
                ("stochasticRounding", ctypes.c_int), ("seed", ctypes.c_uint64), ("firstIndex", ctypes.c_uint64),
                ("control", ctypes.c_void_p)]


def check(peal, code, call):
    if code != 0:
        peal.pealGetLastError.restype = ctypes.c_char_p
        raise RuntimeError(f"{call}: {peal.pealGetLastError(None).decode()}")


def bytes_on_device(torch, structure):
    """A copy of a ctypes structure in GPU memory."""
    return torch.frombuffer(bytearray(bytes(structure)), dtype=torch.uint8).cuda()


def timed(torch, work, repeats=20):
    work()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(repeats):
        work()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / repeats * 1e-3


def compare_adamw(torch, peal, count=50_000_000, steps=5):
    """The same steps by both, on fp32 parameters with bf16 gradients."""
    rate, betas, epsilon, decay = 1e-3, (0.9, 0.999), 1e-8, 0.1
    torch.manual_seed(1)
    start = torch.randn(count, device="cuda")
    parameter = start.clone().requires_grad_()
    optimizer = torch.optim.AdamW([parameter], lr=rate, betas=betas, eps=epsilon, weight_decay=decay, fused=True)
    master, moment1, moment2 = start.clone(), torch.zeros_like(start), torch.zeros_like(start)
    weight = torch.zeros(count, dtype=torch.bfloat16, device="cuda")
    control = bytes_on_device(torch, Control(0, rate, 1.0, 0, 0))
    segments = bytes_on_device(torch, Segment(count, decay))
    state = Adamw(*betas, epsilon, master.data_ptr(), moment1.data_ptr(), moment2.data_ptr(), count,
                  segments.data_ptr(), 1, 0, 0, 0, control.data_ptr())
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())

    def step(gradient):
        code = peal.pealAdamwStep(ctypes.c_void_p(gradient.data_ptr()), ctypes.c_void_p(weight.data_ptr()),
                                  ctypes.byref(state), 0, ctypes.c_void_p(stream.cuda_stream))
        check(peal, code, "pealAdamwStep")

    with torch.cuda.stream(stream):
        for _ in range(steps):
            gradient = torch.randn(count, device="cuda").bfloat16()
            parameter.grad = gradient.float()
            optimizer.step()
            step(gradient)
        stream.synchronize()
        error = (parameter.detach() - master).abs()
        allowed = 1e-5 + 1.3e-6 * parameter.detach().abs()
        beyond = int((error > allowed).sum())
        ours = timed(torch, lambda: step(gradient))
        theirs = timed(torch, optimizer.step)
    print(f"AdamW, {count} elements, {steps} steps: largest difference from PyTorch {float(error.max()):.2e}, "
          f"{beyond} beyond rtol 1.3e-6, atol 1e-5; peal {ours * 1e3:.3f} ms (bf16 gradient and weight: 28 bytes "
          f"an element), PyTorch fused {theirs * 1e3:.3f} ms (fp32 gradient, no bf16 weight: 28 bytes)")
    return beyond == 0


class NcclId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_char * 128)]


def compare_nccl(torch, peal, nccl):
    """One rank: both copy, bit for bit."""
    comm, identity = ctypes.c_void_p(), NcclId()
    if nccl.ncclGetUniqueId(ctypes.byref(identity)) != 0 or \
            nccl.ncclCommInitRank(ctypes.byref(comm), 1, identity, 0) != 0:
        raise RuntimeError("NCCL could not make a communicator of one rank")
    ours = ctypes.c_void_p()
    check(peal, peal.pealCommInitAll(ctypes.byref(ours), 1, (ctypes.c_int * 1)(0)), "pealCommInitAll")
    source = torch.randn(1 << 22, device="cuda")
    by_nccl, by_peal = torch.zeros_like(source), torch.zeros_like(source)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    pointer = ctypes.c_void_p(stream.cuda_stream)
    arguments = (ctypes.c_size_t(source.numel()), PEAL_FLOAT32, PEAL_SUM)
    if nccl.ncclAllReduce(ctypes.c_void_p(source.data_ptr()), ctypes.c_void_p(by_nccl.data_ptr()),
                          ctypes.c_size_t(source.numel()), NCCL_FLOAT32, NCCL_SUM, comm, pointer) != 0:
        raise RuntimeError("ncclAllReduce failed")
    check(peal, peal.pealAllReduce(ctypes.c_void_p(source.data_ptr()), ctypes.c_void_p(by_peal.data_ptr()),
                                   *arguments, ours, pointer), "pealAllReduce")
    stream.synchronize()
    equal = torch.equal(by_nccl, by_peal)
    print(f"all-reduce of one rank, {source.numel()} floats: {'the same bits as' if equal else 'NOT EQUAL to'} NCCL")
    peal.pealCommDestroy(ours)
    nccl.ncclCommDestroy(comm)
    return equal


def main():
    try:
        import torch
    except ImportError:
        print("PyTorch is not installed: AdamW and NCCL are not compared")
        return 0
    if not torch.cuda.is_available():
        print("the installed PyTorch has no CUDA: AdamW and NCCL are not compared")
        return 0
    peal = ctypes.CDLL(sys.argv[1])
    good = compare_adamw(torch, peal)
    try:
        nccl = ctypes.CDLL("libnccl.so.2")
    except OSError as reason:
        print(f"NCCL is not compared: {reason}")
        return 0 if good else 1
    return 0 if compare_nccl(torch, peal, nccl) and good else 1


if __name__ == "__main__":
    sys.exit(main())
