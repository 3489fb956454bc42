"""The command peal-ckpt: a checkpoint made from a safetensors file written here by hand, listed, verified, damaged,
compared, and exported to files that are read here by hand.

    peal-ckpt_test.py PROGRAM
"""
import json
import resource
import signal
import struct
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

PROGRAM = sys.argv[1]


def run(*arguments):
    return subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True, timeout=60, check=False)


def write_safetensors(path, tensors, metadata=None):
    """tensors: name -> (dtype, shape, bytes)."""
    header, data = {"__metadata__": metadata} if metadata else {}, b""
    for name, (dtype, shape, values) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(values)]}
        data += values
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def read_safetensors(path, with_metadata=False):
    whole = path.read_bytes()
    length = struct.unpack("<Q", whole[:8])[0]
    header = json.loads(whole[8:8 + length])
    metadata = header.pop("__metadata__")
    data = whole[8 + length:]
    assert len(data) == max(entry["data_offsets"][1] for entry in header.values())
    tensors = {name: (entry["dtype"], entry["shape"], data[slice(*entry["data_offsets"])])
               for name, entry in header.items()}
    return (tensors, metadata) if with_metadata else tensors


def crc32c(data):
    checksum = 0xffffffff
    for byte in data:
        checksum ^= byte
        for _ in range(8):
            checksum = checksum >> 1 ^ (0x82f63b78 if checksum & 1 else 0)
    return checksum ^ 0xffffffff


# 0.15625 and 3.0 are bf16; 1.00390625 (0x3f808000) lies half-way between 0x3f80 and 0x3f81.
FLOATS = struct.pack("<6f", 0.15625, -3.0, 1.00390625, 0.1, 0.0, 1e30)
ROUNDED = struct.pack("<6H", 0x3e20, 0xc040, 0x3f80, 0x3dcd, 0x0000, 0x714a)
HALVES = struct.pack("<3H", 0x3f80, 0xc000, 0x3e20)
TENSORS = {"a weight": ("F32", [2, 3], FLOATS), "b": ("BF16", [3], HALVES)}


IDENTITY = 0x0123456789abcdef


def block(stream, payload):
    """Of a part: one block, as all streams here have, and its checksum."""
    return payload + struct.pack("<I", crc32c(struct.pack("<3Q", IDENTITY, stream, 0) + payload))


def write_frozen_and_tied(path):
    """By docs/CHECKPOINTS.md, a checkpoint of step 5: a trained parameter, a frozen one, and another name for each."""
    table = struct.pack("<6Q", 0, 0, 6, 1, 0, 3)  # parameter, first element, elements: two stretches
    moments = [struct.pack("<6f", *(scale * i for i in range(6))) for scale in (0.5, 0.25)]
    streams = (block(0, FLOATS) + block(1, moments[0]) + block(2, moments[1]) + block(4, HALVES))
    size = 64 + len(table) + 8 + len(streams)
    head = b"pealpart" + struct.pack("<IIQQQQQI", 1, 3, IDENTITY, 2, 6, size, 3, 0)
    head += struct.pack("<I", crc32c(head))
    end = struct.pack("<Q", crc32c(struct.pack("<Q", IDENTITY) + table))
    path.mkdir()
    (path / "part-00000.bin").write_bytes(head + table + end + streams)
    numbers = " ".join(struct.pack(">d", number).hex() for number in (0.9, 0.999, 1e-8, 0.01))
    manifest = (f"peal-checkpoint 1\nid {IDENTITY:016x}\nstep 5\nstreams 3\nweights bf16\ngroups 1\ngroup {numbers}\n"
                "parameters 4\ntrained 0 6 2x3 wte\nfrozen 0 3 3 norm\ntied 0 6 2x3 head\ntied 1 3 3 norm%20again\n"
                f"parts 1\npart {size} 9 {crc32c(head + table + end):08x} part-00000.bin\n"
                "user 0 00000000\n")
    manifest += f"checksum {crc32c(manifest.encode()):08x}\n"
    (path / "manifest.txt").write_bytes(manifest.encode())
    return moments


class Commands(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.path = Path(self.folder.name)
        write_safetensors(self.path / "in", TENSORS)
        self.succeed("import", self.path / "in", self.path / "one")
        self.assertIn("holds a checkpoint already, of step 0", self.refused("import", self.path / "in", self.path / "one"))
        self.succeed("import", "--force", self.path / "in", self.path / "one")

    def succeed(self, *arguments):
        done = run(*arguments)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def refused(self, *arguments):
        done = run(*arguments)
        self.assertNotEqual(done.returncode, 0, done.stdout)
        return done.stdout + done.stderr

    def test_list(self):
        self.assertIn("bf16  a weight [2,3]", self.succeed("list", self.path / "one"))
        told = json.loads(self.succeed("list", "--json", self.path / "one"))
        self.assertEqual([told["step"], told["elements"], told["files"]], [0, 9, 1])
        self.assertEqual(told["parameters"][1],
                         {"name": "b", "elements": 3, "shape": [3], "kind": "trained", "weightBytes": 2})

    def test_export(self):
        self.succeed("export", self.path / "one", self.path / "weights")
        self.assertEqual(read_safetensors(self.path / "weights"),
                         {"a weight": ("BF16", [2, 3], ROUNDED), "b": ("BF16", [3], HALVES)})
        self.succeed("export", "--tensors", "all", self.path / "one", self.path / "all")
        tensors = read_safetensors(self.path / "all")
        self.assertEqual(tensors["a weight"], TENSORS["a weight"])
        self.assertEqual(tensors["a weight.moment2"], ("F32", [2, 3], bytes(24)))
        self.assertEqual(len(tensors), 6)
        self.assertIn("exists", self.refused("export", self.path / "one", self.path / "all"))
        size = (self.path / "weights").stat().st_size
        self.assertEqual(self.succeed("export", "--force", self.path / "one", self.path / "all"),
                         f"{self.path / 'all'}: 2 tensors, {size} bytes\n")
        self.assertEqual((self.path / "all").read_bytes(), (self.path / "weights").read_bytes())

    def test_export_leaves_a_whole_file_or_none(self):
        def short_disk():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))

        done = subprocess.run([PROGRAM, "export", self.path / "one", self.path / "weights"], capture_output=True,
                              text=True, timeout=60, check=False, preexec_fn=short_disk)
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertIn("weights cannot be written whole; it needs", done.stderr)
        self.assertEqual(sorted(entry.name for entry in self.path.iterdir()), ["in", "one"])
        self.succeed("export", self.path / "one", self.path / "weights")
        self.assertEqual(sorted(entry.name for entry in self.path.iterdir()), ["in", "one", "weights"])

    def rewrite_manifest(self, *changes):
        manifest = self.path / "one" / "manifest.txt"
        text = manifest.read_bytes()
        for old, new in changes:
            self.assertIn(old, text)
            text = text.replace(old, new)
        text = text[:text.rindex(b"checksum ")]
        manifest.write_bytes(text + f"checksum {crc32c(text):08x}\n".encode())

    def test_weights_of_fp32_are_exported_as_such(self):
        self.assertEqual(json.loads(self.succeed("list", "--json", self.path / "one"))["weightBytes"], 2)
        self.rewrite_manifest((b"weights bf16\n", b"weights fp32\n"))
        self.assertEqual(json.loads(self.succeed("list", "--json", self.path / "one"))["weightBytes"], 4)
        self.succeed("export", self.path / "one", self.path / "weights")
        self.assertEqual(read_safetensors(self.path / "weights")["a weight"], TENSORS["a weight"])

    def test_each_parameter_is_exported_in_its_type(self):
        self.rewrite_manifest((b"weights bf16\n", b"weights mixed\n"), (b"trained 0 6", b"trained-fp32 0 6"))
        told = json.loads(self.succeed("list", "--json", self.path / "one"))
        self.assertEqual([told["weightBytes"], *(each["weightBytes"] for each in told["parameters"])], [0, 4, 2])
        self.succeed("export", self.path / "one", self.path / "weights")
        self.assertEqual(read_safetensors(self.path / "weights"),
                         {"a weight": TENSORS["a weight"], "b": ("BF16", [3], HALVES)})

    def test_frozen_and_tied_ones_are_exported_and_come_back(self):
        moments = write_frozen_and_tied(self.path / "two")
        self.assertIn("whole", self.succeed("verify", self.path / "two"))
        frozen = ("BF16", [3], HALVES)
        expected = {"weights": {"wte": ("BF16", [2, 3], ROUNDED), "norm": frozen},
                    "master": {"wte": ("F32", [2, 3], FLOATS), "norm": frozen},
                    "all": {"wte": ("F32", [2, 3], FLOATS), "norm": frozen,
                            "wte.moment1": ("F32", [2, 3], moments[0]), "wte.moment2": ("F32", [2, 3], moments[1])}}
        for tensors, values in expected.items():
            self.succeed("export", "--tensors", tensors, self.path / "two", self.path / tensors)
            found, metadata = read_safetensors(self.path / tensors, with_metadata=True)
            self.assertEqual(found, values, tensors)
            self.assertEqual({key: json.loads(text) for key, text in metadata.items()},
                             {"step": 5, "peal.frozen": ["norm"], "peal.tied": {"head": "wte", "norm again": "norm"}})

        def kinds(name):
            told = json.loads(self.succeed("list", "--json", self.path / name))
            return sorted((each["name"], each["kind"], each["elements"]) for each in told["parameters"])

        self.succeed("import", self.path / "master", self.path / "back")
        self.assertEqual(kinds("back"), kinds("two"))
        self.assertEqual({kind for _, kind, _ in kinds("two")}, {"trained", "frozen", "tied to norm", "tied to wte"})
        self.succeed("export", "--tensors", "master", self.path / "back", self.path / "again")
        self.assertEqual(read_safetensors(self.path / "again"), expected["master"])
        told = self.refused("compare", self.path / "two", self.path / "back")  # that has no moments
        self.assertEqual(told.count(" elements of "), 2, told)
        for key, text in (("peal.tied", '{"head": "none"}'), ("peal.tied", '["a weight"]'), ("peal.frozen", '["none"]'),
                          ("peal.frozen", "no JSON"), ("peal.tied", '{"head": "__metadata__"}')):
            write_safetensors(self.path / "wrong", TENSORS, {key: text})
            self.assertIn(f'as "{key}" does not name tensors', self.refused("import", self.path / "wrong", self.path / "x"))
        write_safetensors(self.path / "wrong", TENSORS, {"peal.tied": '{"b": "a weight"}'})
        self.assertIn('"b" is a tensor, and', self.refused("import", self.path / "wrong", self.path / "x"))

    def test_compare(self):
        self.succeed("export", "--tensors", "master", self.path / "one", self.path / "master")
        self.succeed("import", self.path / "master", self.path / "two")
        self.assertIn("the same", self.succeed("compare", self.path / "one", self.path / "two"))
        changed = dict(TENSORS, b=("BF16", [3], HALVES[:4] + b"\x21\x3e"), c=("F32", [], bytes(4)))
        write_safetensors(self.path / "changed", changed)
        self.succeed("import", self.path / "changed", self.path / "three")
        told = self.refused("compare", self.path / "one", self.path / "three")
        self.assertIn("b: 1 of 3 elements of master differ", told)
        self.assertIn("c: only in", told)

    def test_verify(self):
        self.assertIn("whole", self.succeed("verify", self.path / "one"))
        part = self.path / "one" / "part-00000.bin"
        whole = bytearray(part.read_bytes())
        whole[-10] ^= 1
        part.write_bytes(whole)
        told = self.refused("verify", self.path / "one")
        self.assertIn("part-00000.bin", told)
        self.assertIn("offset", told)
        self.assertIn("moment2", told)
        part.write_bytes(whole[:-1])
        self.assertIn("truncated", self.refused("verify", self.path / "one"))

    def test_refusals(self):
        self.assertEqual(run("list").returncode, 2)
        self.assertEqual(run("--version").returncode, 0)
        self.assertRegex(run("--version").stdout, r"^peal-ckpt \d+\.\d+\.\d+ of peal\n$")
        for arguments, words in (
                (("foo",), 'it knows no "foo": list, verify, compare, export or import'),
                (("list", self.path), f"{self.path} is no checkpoint: there is no {self.path}/manifest.txt. Is {self.path / 'one'} meant"),
                (("verify", self.path / "in"), "in is no checkpoint: there is no "),
                (("compare", self.path / "one", self.path / "none"), "none is no checkpoint"),
                (("import", self.path / "none", self.path / "x"), "cannot open " + str(self.path / "none") + ": No such"),
                (("import", self.path / "in", self.path / "one"), "holds a checkpoint already"),
                (("export", self.path / "one", self.path / "none/w"), "cannot write " + str(self.path / "none/w") + ": No"),
                (("export", "--force", self.path / "one", self.path), "exists, a directory"),
                (("export", self.path / "one", self.path / "in"), "exists (--force replaces it)")):
            done = run(*arguments)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(words, done.stderr)
        (self.path / "foreign").write_bytes(b"\xff" * 40)
        self.assertIn("no safetensors", self.refused("import", self.path / "foreign", self.path / "x"))
        (self.path / "cut").write_bytes((self.path / "in").read_bytes()[:-1])
        self.assertIn("truncated", self.refused("import", self.path / "cut", self.path / "x"))
        write_safetensors(self.path / "int", {"i": ("I64", [1], bytes(8))})
        self.assertIn("I64", self.refused("import", self.path / "int", self.path / "x"))
        # What a parser would read otherwise than it is written.
        def header(name='"i"', dtype='"F32"', shape="[2]", more=""):
            text = f'{{{name}: {{"dtype": {dtype}, "shape": {shape}, "data_offsets": [0, 8]}}{more}}}'.encode()
            (self.path / "odd").write_bytes(struct.pack("<Q", len(text)) + text + bytes(8))

        twice = ', "i": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}'
        tied = ', "__metadata__": {"peal.tied": "{\\"t\\": \\"i\\", \\"t\\": \\"i\\"}"}'
        for odd, words in (({"more": twice}, 'has "i" twice'), ({"more": tied}, 'has "t" twice'),
                           ({"name": r'"i\u0000j"'}, r'is called "i\u0000j"'), ({"name": '""'}, 'is called ""'),
                           ({"shape": "[2.7]"}, "dtype, shape and data_offsets"), ({"shape": "[-1, 0]"}, "dtype, shape"),
                           ({"dtype": "4"}, "dtype, shape"), ({"more": ', "j": []'}, """does not say "j"'s dtype""")):
            header(**odd)
            done = run("import", self.path / "odd", self.path / "x")
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(words, done.stderr)
        header()
        self.succeed("import", self.path / "odd", self.path / "even")
        self.assertFalse((self.path / "x").exists())


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
