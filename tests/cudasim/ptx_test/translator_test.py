"""The translator without a compiler: what it makes of declarations and statements, and what it says of what it does
not know. What instructions compute is opcodes_test's."""
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

PTX = Path(__file__).resolve().parents[1] / "ptx"
sys.path.insert(0, str(PTX))

from translator.emit import emit  # noqa: E402
from translator.errors import PtxError  # noqa: E402
from translator.liveness import readBeforeWritten  # noqa: E402
from translator.parser import parse  # noqa: E402

HEAD = ".version 9.0\n.target sm_80\n.address_size 64\n"


def kernel(body: str, parameters: str = ".param .u64 p0") -> str:
    return f"{HEAD}.visible .entry kernel({parameters})\n{{\n{body}\n}}\n"


def translated(body: str, parameters: str = ".param .u64 p0") -> str:
    return emit(parse(kernel(body, parameters)), "test.ptx")


class Statements(unittest.TestCase):
    def assertTranslates(self, body: str, *expected: str):
        text = translated(body)
        for line in expected:
            self.assertIn(line, text)

    def test_register_of_an_inner_scope_hides_the_outer_one(self):
        self.assertTranslates(
            ".reg .pred %p<3>; .reg .b32 %r<3>; mov.pred %p1, 0;"
            "{ .reg .pred %p1; .reg .b64 tmp; mov.pred %p1, -1; mov.u64 tmp, 5; }"
            "@%p1 mov.u32 %r1, 7;",
            "p1 = false;", "p1_s1 = true;", "x_tmp_s1 = 5ull;", "if (p1) { r1 = 7u; }")

    def test_only_branches_backward_count_as_loops(self):
        text = translated(".reg .pred %p<2>; $A: @%p1 bra $A; @!%p1 bra $B; $B: ret;")
        self.assertIn("if (p1) { { ptx::backEdge(); goto A; } }", text)
        self.assertIn("if (!p1) { goto B; }", text)

    def test_label_of_an_inner_scope_is_its_own(self):
        self.assertTranslates("{ bra WAIT; WAIT: } { bra WAIT; WAIT: } ret;",
                              "goto WAIT_s1;", "goto WAIT_s2;", "WAIT_s1:;", "WAIT_s2:;")

    def test_jump_table(self):
        self.assertTranslates(
            ".reg .b32 %r<2>; mov.u32 %r1, 1; $A: $T: .branchtargets $A, $B; brx.idx %r1, $T; $B: ret;",
            "switch (r1) { case 0: { ptx::backEdge(); goto A; } case 1: goto B; default: ptx::trap(); }")

    def test_call_through_param_space(self):
        text = emit(parse(HEAD + """
            .func (.param .align 8 .b8 func_retval0[16]) f(.param .b32 f_param_0, .param .align 4 .b8 f_param_1[12]);
            .visible .entry kernel() {
              .reg .b32 %r<2>;
              mov.u32 %r1, 3;
              { .param .b32 param0; .param .align 4 .b8 param1[12]; .param .align 8 .b8 retval0[16];
                st.param.b32 [param0+0], %r1; st.param.b32 [param1+8], %r1;
                call.uni (retval0), f, (param0, param1);
                ld.param.b32 %r1, [retval0+12]; }
              ret;
            }
            .func (.param .align 8 .b8 func_retval0[16]) f(.param .b32 f_param_0, .param .align 4 .b8 f_param_1[12]) {
              .reg .b32 %r<2>;
              ld.param.u32 %r1, [f_param_1+4];
              st.param.b32 [func_retval0+4], %r1;
              ret;
            }"""), "test.ptx")
        self.assertIn("ptx::Bytes<16, 8> device_f(ptx::Bytes<4, 4> f_param_0, ptx::Bytes<12, 4> f_param_1);", text)
        self.assertIn("retval0_s1 = device_f(param0_s1, param1_s1);", text)
        self.assertIn("return func_retval0;", text)

    def test_accesses_are_told_apart(self):
        registers = ".reg .b32 %r<5>; .reg .b64 %rd<5>; mov.u64 %rd1, 0; mov.u64 %rd2, 0; mov.u32 %r1, 0;"
        for instruction, expected in (
                ("ld.global.u32 %r1, [%rd1+4]", "r1 = ptx::load<ptx::Space::Global, ptx::u32, 1>(uint64_t{rd1} + 4)[0];"),
                ("ld.global.nc.u32 %r1, [%rd1-4]", "ptx::loadNonCoherent<ptx::u32, 1>(uint64_t{rd1} - 4)[0];"),
                ("ld.u64 %rd2, [%rd1]", "ptx::load<ptx::Space::Generic, ptx::u64, 1>"),
                ("ld.acquire.gpu.global.u32 %r1, [%rd1]",
                 "ptx::loadStrong<ptx::Space::Global, ptx::u32, ptx::Order::Acquire, ptx::Scope::Device>"),
                ("ld.volatile.u32 %r1, [%rd1]",
                 "ptx::loadStrong<ptx::Space::Generic, ptx::u32, ptx::Order::Relaxed, ptx::Scope::System>"),
                ("st.release.sys.global.u64 [%rd1], %rd2",
                 "ptx::storeStrong<ptx::Space::Global, ptx::u64, ptx::Order::Release, ptx::Scope::System>"),
                ("ld.volatile.global.v4.u32 {%r1, %r2, %r3, %r4}, [%rd1]", "ptx::loadFlagged("),
                ("st.volatile.global.v4.u32 [%rd1], {%r1, %r1, %r1, %r1}", "ptx::storeFlagged("),
                ("ld.volatile.global.v2.u64 {%rd2, %rd3}, [%rd1]", "ptx::loadLinePart("),
                ("st.volatile.global.v2.u64 [%rd1], {%rd2, %rd2}", "ptx::storeLinePart("),
                ("atom.acq_rel.sys.global.cas.b64 %rd2, [%rd1], %rd2, 7",
                 "ptx::atomic<ptx::Space::Global, ptx::b64, ptx::Atomic::Cas, ptx::Order::AcquireRelease, "
                 "ptx::Scope::System>"),
                ("red.global.add.u32 [%rd1], 1", "ptx::Order::Relaxed, ptx::Scope::Device>(uint64_t{rd1}, 1u)"),
                ("fence.acq_rel.sys", "ptx::fence<ptx::Scope::System>();"),
                ("membar.gl", "ptx::fence<ptx::Scope::Device>();"),
                ("bar.sync 3, 64", "ptx::syncBlock(3u, 0x40u);"),
                ("barrier.cta.sync.aligned 0", "ptx::syncBlock(0u, 0);")):
            with self.subTest(instruction):
                self.assertTranslates(f"{registers} {instruction}; ret;", expected)

    def test_sign_goes_along_into_wider_registers(self):
        self.assertTranslates(".reg .b32 %r<2>; .reg .b64 %rd<2>; ld.param.s8 %r1, [p0]; ret;",
                              "r1 = ptx::extend<ptx::s8, uint32_t>(")

    def test_struct_parameter(self):
        text = translated("ret;", ".param .align 8 .b8 p0[72], .param .f32 p1, .param .u64 .ptr .global .align 4 p2")
        self.assertIn('extern "C" void kernel(ptx::Bytes<72, 8> p0, float p1, uint64_t p2)', text)

    def test_shared_memory_of_kernels_overlaps_and_that_of_functions_does_not(self):
        text = emit(parse(HEAD + """
            .shared .align 4 .b8 all[12];
            .extern .shared .align 16 .b8 dynamic[];
            .visible .entry a() { .shared .align 8 .b8 forA[40]; ret; }
            .visible .entry b() { .shared .align 16 .b8 forB[16]; ret; }"""), "test.ptx")
        self.assertIn("variable_all() { return 0; }", text)
        self.assertIn("variable_forA() { return 16; }", text)
        self.assertIn("variable_forB() { return 16; }", text)
        self.assertIn("kStaticShared = 128;", text)
        self.assertIn("variable_dynamic() { return ptx::dynamicSharedOffset(); }", text)

    def test_variables_with_initial_values(self):
        text = emit(parse(HEAD + """
            .const .align 4 .f32 half[2] = {0f3F000000};
            .global .align 8 .u64 where[2] = {7, generic(half)+4};"""), "test.ptx")
        self.assertIn("ptx::moduleVariable(8, {0, 0, 0, 63});", text)
        self.assertIn("ptx::putAddress(at, 8, (variable_half() + 4));", text)


class Liveness(unittest.TestCase):
    def poisoned(self, body: str):
        function = parse(kernel(body)).functions["kernel"]
        return sorted(register.name for register in readBeforeWritten(function))

    def test_only_what_may_be_read_first(self):
        self.assertEqual(self.poisoned(
            ".reg .pred %p<3>; .reg .b32 %r<9>;"
            "mov.u32 %r1, 1; setp.eq.u32 %p1, %r1, 1; @%p1 bra $SKIP; mov.u32 %r2, 1; mov.u32 %r3, 1;"
            "$SKIP: add.u32 %r4, %r2, %r1; ret;"), ["r2"])

    def test_a_write_under_a_predicate_may_not_happen(self):
        self.assertEqual(self.poisoned(
            ".reg .pred %p<3>; .reg .b32 %r<9>; mov.pred %p1, 1; @%p1 mov.u32 %r1, 1; add.u32 %r2, %r1, 1; ret;"), ["r1"])

    def test_around_a_loop(self):
        self.assertEqual(self.poisoned(
            ".reg .pred %p<3>; .reg .b32 %r<9>; mov.u32 %r2, 0; $L: add.u32 %r1, %r2, 1; mov.u32 %r2, %r1;"
            "setp.lt.u32 %p1, %r2, 9; @%p1 bra $L; ret;"), [])


class Refusals(unittest.TestCase):
    def assertRefuses(self, body: str, line: int, *words: str, parameters: str = ".param .u64 p0"):
        with self.assertRaises(PtxError) as caught:
            translated(body, parameters)
        self.assertEqual(caught.exception.line, line, caught.exception.message)
        for word in words:
            self.assertIn(word, caught.exception.message)

    def test_what_it_does_not_know(self):
        registers = ".reg .b32 %r<9>; .reg .b64 %rd<9>; .reg .pred %p<3>;\n"
        for body, words in (
                ("dp4a.u32.u32 %r1, %r2, %r3, %r4;", ["dp4a.u32.u32", "unknown instruction"]),
                ("add.ftz.f32 %r1, %r2, %r3;", ["add.ftz.f32", "unknown modifier .ftz"]),
                ("ex2.approx.f32 %r1, %r2;", ["ex2.approx.f32"]),
                ("div.full.f32 %r1, %r2, %r3;", ["div.full.f32", ".rn"]),
                ("add.rz.f32 %r1, %r2, %r3;", [".rz"]),
                ("ld.relaxed.sys.global.v2.u32 {%r1, %r2}, [%rd1];", ["vectors are strong only"]),
                ("ld.volatile.global.v2.u32 {%r1, %r2}, [%rd1];", ["vectors are strong only"]),
                ("ld.acquire.global.u32 %r1, [%rd1];", ["needs one of .cta"]),
                ("mov.u32 %r1, %warp_shape;", ["%warp_shape"]),
                ("mov.u32 %r1, %r77;", ["%r77"]),
                ("mov.u64 %rd1, nothing;", ["nothing is called 'nothing'"]),
                ("mov.u64 %rd1, %r1;", ["32 bits, not 64"]),
                ("mov.u32 %r1, %p1;", ["pred"]),
                ("call.uni absent, ();", ["absent"]),
                ("cvt.f16.f32 %r1, %r2;", ["needs a rounding"]),
                ("bra %r1;", []),
                ("wgmma.fence.sync.aligned;", ["wgmma"])):
            with self.subTest(body):
                self.assertRefuses(registers + body + "\nret;", 7, *words)

    def test_small_struct_parameters(self):
        self.assertRefuses("ret;", 4, "struct of 16 bytes", parameters=".param .align 4 .b8 p0[16]")

    def test_text_that_is_no_ptx(self):
        for text in ("hello", HEAD + ".visible .entry kernel() {", HEAD + ".func f(", "\x00"):
            with self.subTest(text), self.assertRaises(PtxError):
                parse(text)

    def test_the_program_names_file_and_line(self):
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder) / "bad.ptx"
            source.write_text(kernel("wgmma.fence.sync.aligned;"), encoding="utf-8")
            result = subprocess.run([sys.executable, PTX / "ptx2cpp.py", source, Path(folder) / "bad.cpp"],
                                    capture_output=True, text=True, timeout=60, check=False)
            self.assertEqual(result.returncode, 1)
            self.assertIn(f"{source}:6: error: 'wgmma.fence.sync.aligned' is not supported", result.stderr)
            self.assertFalse((Path(folder) / "bad.cpp").exists())


if __name__ == "__main__":
    unittest.main()
