"""Tokens -> Module. Knows the shape of PTX (directives, scopes, operands), nothing of what instructions do."""
import re
from typing import Optional

from . import types
from .errors import PtxError
from .lexer import Token, tokens
from .syntax import (Address, Float, Function, Instruction, Integer, Label, Module, Not, Operand, Pair, Register,
                     Sink, Special, Symbol, Variable, Vector)
from .types import Type

_LINKAGE = (".visible", ".weak", ".extern", ".common")
_SPACES = {".global": "global", ".const": "const", ".shared": "shared", ".local": "local", ".param": "param"}
_IGNORED_LINES = (".version", ".target", ".address_size", ".pragma", ".file", ".loc")
_VECTORS = {".v2": 2, ".v4": 4}
_USUAL_REGISTER = re.compile(r"%(?:p|rs?|rd|rq|fd?|SPL?)\d*$")
_NOT_IN_CPP = str.maketrans("$%", "__")


class _Scope:
    """Names declared between two braces. Those of inner scopes get a suffix, so that C++ needs no scopes."""

    def __init__(self, suffix: str):
        self.suffix = suffix
        self.registers: dict[str, Type] = {}
        self.families: dict[str, tuple[Type, int]] = {}  # %r<80>: registers %r0 to %r79
        self.variables: dict[str, str] = {}
        self.labels: dict[str, str] = {}

    def registerType(self, name: str) -> Optional[Type]:
        if name in self.registers:
            return self.registers[name]
        stem = name.rstrip("0123456789")
        number = name[len(stem):]
        if number and stem in self.families and int(number) < self.families[stem][1]:
            return self.families[stem][0]
        return None


class Parser:
    def __init__(self, text: str):
        self._tokens = tokens(text)
        self._next = 0
        self._module = Module()
        self._function: Optional[Function] = None
        self._scopes: list[_Scope] = []
        self._scopeCount = 0

    # ---- tokens ----
    def _peek(self, ahead: int = 0) -> Token:
        return self._tokens[self._next + ahead]

    def _take(self) -> Token:
        token = self._tokens[self._next]
        if token.kind == "end":
            raise PtxError(token.line, "the file ends too early")
        self._next += 1
        return token

    def _accept(self, text: str) -> bool:
        if self._tokens[self._next].text != text:
            return False
        self._next += 1
        return True

    def _expect(self, text: str) -> Token:
        token = self._take()
        if token.text != text:
            raise PtxError(token.line, f"expected '{text}', found '{token.text}'")
        return token

    def _word(self) -> str:
        token = self._take()
        if token.kind != "word":
            raise PtxError(token.line, f"expected a name, found '{token.text}'")
        return token.text

    def _integer(self) -> int:
        negative = self._accept("-")
        token = self._take()
        if token.kind != "number" or token.text[:2].lower() in ("0f", "0d") or "." in token.text:
            raise PtxError(token.line, f"expected an integer, found '{token.text}'")
        value = _integerOf(token.text)
        return -value if negative else value

    def _skipLine(self) -> None:
        """A directive that ends with its line or with ';'."""
        line = self._peek().line
        while self._peek().line == line and self._peek().kind != "end":
            self._next += 1

    # ---- module ----
    def parse(self) -> Module:
        while self._peek().kind != "end":
            token = self._peek()
            if token.text in _IGNORED_LINES:
                self._skipLine()
            elif token.text == ".section":
                self._skipBraces()
            else:
                self._declaration()
        return self._module

    def _skipBraces(self) -> None:
        while self._take().text != "{":
            pass
        while self._take().text != "}":
            pass

    def _declaration(self) -> None:
        start = self._peek()
        isExtern = False
        while self._peek().text in _LINKAGE:
            isExtern |= self._take().text == ".extern"
        word = self._peek()
        if word.text in (".entry", ".func"):
            self._functionDeclaration()
        elif word.text in _SPACES:
            variable = self._variable(isExtern)
            self._module.variables[variable.name] = variable
        else:
            raise PtxError(start.line, f"unknown directive '{word.text}'")

    def _variable(self, isExtern: bool = False) -> Variable:
        """.space [.ptr] [.align N] [.v2] .type name [count...] [= initial] with its ';' if there is one."""
        line = self._peek().line
        space = _SPACES[self._word()]
        align, elements, kind = 0, 1, None
        while self._peek().text.startswith("."):
            word = self._word()
            if word == ".align":
                align = self._integer()
            elif word in _VECTORS:
                elements = _VECTORS[word]
            elif word[1:] in types.NAMES:
                kind = Type(word[1:])
            elif word == ".ptr":  # what a pointer parameter points to: not needed
                while self._peek().text.startswith("."):
                    if self._word() == ".align":
                        self._integer()
            else:
                raise PtxError(line, f"unknown word '{word}' in a declaration")
        if kind is None:
            raise PtxError(line, "a declaration without a type")
        name = self._word()
        count: Optional[int] = elements
        while self._accept("["):
            if self._accept("]"):
                count = None
            else:
                count = (count or 0) * self._integer()
                self._expect("]")
        variable = Variable(space, kind, name, max(align, kind.size * elements if not align else 1), count, line=line)
        if self._accept("="):
            variable.initial = self._initial()
        if count is None and not isExtern:
            raise PtxError(line, f"array '{name}' without a size")
        if space != "param":
            self._expect(";")
        return variable

    def _initial(self) -> list:
        if self._accept("{"):
            values = []
            while not self._accept("}"):
                values += self._initial()
                self._accept(",")
            return values
        if self._peek().kind == "word":
            return [self._initialSymbol()]
        return [self._literal()]

    def _initialSymbol(self) -> Symbol:
        """name, generic(name): the address as ld without a space takes it; either with an offset behind."""
        name, offset = self._word(), 0
        if name == "generic":
            self._expect("(")
            name = self._word()
            self._expect(")")
        while self._peek().text in ("+", "-"):
            negative = self._take().text == "-"
            offset += -self._integer() if negative else self._integer()
        return Symbol(name, offset)

    # ---- functions ----
    def _parameters(self) -> list[Variable]:
        self._expect("(")
        result = []
        while not self._accept(")"):
            if self._peek().text == ".reg":
                raise PtxError(self._peek().line, ".reg parameters are not supported (old ABI)")
            result.append(self._variable())
            self._accept(",")
        return result

    def _functionDeclaration(self) -> None:
        line = self._peek().line
        isEntry = self._word() == ".entry"
        results = self._parameters() if self._peek().text == "(" else []
        function = Function(self._word(), isEntry, [], results, line)
        if self._peek().text == "(":
            function.parameters = self._parameters()
        while self._peek().text not in ("{", ";"):
            word = self._word()
            if word in (".maxntid", ".reqntid"):
                threads = self._integer()
                while self._accept(","):
                    threads *= self._integer()
                function.maxThreads = threads
            elif word in (".minnctapersm", ".maxnreg", ".maxclusterrank"):
                self._integer()
            elif word not in (".noreturn",):
                raise PtxError(self._peek().line, f"unknown word '{word}' after function '{function.name}'")
        if self._accept(";"):
            self._module.functions.setdefault(function.name, function)
            return
        self._module.functions[function.name] = function
        self._body(function)

    def _body(self, function: Function) -> None:
        function.body = []
        self._function, self._scopes, self._scopeCount = function, [], 0
        self._scopes.append(_Scope(""))
        for parameter in function.parameters + function.results:
            self._scopes[0].variables[parameter.name] = parameter.name
        self._expect("{")
        self._declareLabels()
        depth = 1
        while depth:
            token = self._peek()
            if token.text == "{":
                self._take()
                depth += 1
                self._scopeCount += 1
                self._scopes.append(_Scope(f"_s{self._scopeCount}"))
                self._declareLabels()
            elif token.text == "}":
                self._take()
                depth -= 1
                self._scopes.pop()
            elif token.kind == "end":
                raise PtxError(function.line, f"function '{function.name}' has no end")
            else:
                self._statement()

    def _declareLabels(self) -> None:
        """Labels of the scope that starts here: branches may come before them."""
        at, depth = self._next, 0
        while at + 1 < len(self._tokens):
            token = self._tokens[at]
            if token.text == "{":
                depth += 1
            elif token.text == "}":
                if depth == 0:
                    return
                depth -= 1
            elif depth == 0 and token.kind == "word" and self._tokens[at + 1].text == ":":
                scope = self._scopes[-1]
                scope.labels[token.text] = token.text.replace("$", "") + scope.suffix
            at += 1

    def _statement(self) -> None:
        token = self._peek()
        if token.text in _IGNORED_LINES:
            self._skipLine()
        elif token.text == ".reg":
            self._registers()
        elif token.text in _SPACES:
            self._bodyVariable()
        elif token.kind == "word" and self._peek(1).text == ":":
            self._label()
        else:
            self._instruction()

    def _registers(self) -> None:
        line = self._expect(".reg").line
        word = self._word()
        if word in _VECTORS:
            raise PtxError(line, "vector registers are not supported")
        if word[1:] not in types.NAMES:
            raise PtxError(line, f"registers of type '{word}' are not supported")
        kind, scope = Type(word[1:]), self._scopes[-1]
        while True:
            name = self._word()
            if self._accept("<"):
                scope.families[name] = (kind, self._integer())
                self._expect(">")
            else:
                scope.registers[name] = kind
            if not self._accept(","):
                break
        self._expect(";")

    def _bodyVariable(self) -> None:
        assert self._function
        variable = self._variable(isExtern=False)
        if variable.space == "param":
            self._expect(";")
        scope = self._scopes[-1]
        unique = variable.name + scope.suffix
        scope.variables[variable.name] = unique
        variable.name = unique
        self._function.variables[unique] = variable

    def _label(self) -> None:
        assert self._function and self._function.body is not None
        token = self._take()
        self._expect(":")
        name = self._scopes[-1].labels[token.text]
        if self._peek().text == ".branchtargets":
            self._take()
            targets = [self._labelName(self._take())]
            while self._accept(","):
                targets.append(self._labelName(self._take()))
            self._expect(";")
            self._function.branchTargets[name] = targets
        elif self._peek().text == ".callprototype":
            self._take()
            results = self._parameters() if self._peek().text == "(" else []
            prototype = Function(self._word(), False, [], results, token.line)
            prototype.parameters = self._parameters()
            while not self._accept(";"):
                self._take()
            self._function.prototypes[name] = prototype
        else:
            self._function.body.append(Label(name, token.line))

    def _labelName(self, token: Token) -> str:
        for scope in reversed(self._scopes):
            if token.text in scope.labels:
                return scope.labels[token.text]
        raise PtxError(token.line, f"no label '{token.text}'")

    def _instruction(self) -> None:
        assert self._function and self._function.body is not None
        predicate: Optional[Operand] = None
        line = self._peek().line
        if self._accept("@"):
            negated = self._accept("!")
            predicate = self._operand()
            if negated:
                predicate = Not(predicate)
        opcode, *modifiers = self._word().split(".")
        operands = []
        while not self._accept(";"):
            operands.append(self._operand())
            if self._peek().text != ";":
                self._expect(",")
        self._function.body.append(Instruction(opcode, modifiers, operands, line, predicate))

    # ---- operands ----
    def _operand(self) -> Operand:
        token = self._peek()
        if token.text == "!":
            self._take()
            return Not(self._operand())
        if token.text == "[":
            return self._address()
        if token.text in "{(":
            self._take()
            closing = "}" if token.text == "{" else ")"
            elements = []
            while not self._accept(closing):
                elements.append(self._operand())
                self._accept(",")
            return Vector(tuple(elements))
        if token.kind == "number" or token.text == "-":
            return self._literal()
        operand = self._named(self._take())
        if self._accept("|"):
            return Pair(operand, self._operand())
        if isinstance(operand, Symbol) and self._peek().text == "+":
            self._take()
            return Symbol(operand.name, self._integer())
        return operand

    def _address(self) -> Address:
        self._expect("[")
        base, offset = self._operand(), 0
        if isinstance(base, Symbol):
            base, offset = Symbol(base.name), base.offset
        if self._accept("+"):
            offset += self._integer()
        elif self._peek().text == "-":
            offset += self._integer()
        self._expect("]")
        return Address(base, offset)

    def _literal(self) -> Operand:
        negative = self._accept("-")
        token = self._take()
        text = token.text
        if token.kind != "number":
            raise PtxError(token.line, f"expected a number, found '{text}'")
        if text[:2] in ("0f", "0F", "0d", "0D"):
            width = 32 if text[1] in "fF" else 64
            bits = int(text[2:], 16)
            return Float(bits ^ (1 << (width - 1)) if negative else bits, width)
        if "." in text:
            raise PtxError(token.line, f"decimal float literal '{text}' is not supported")
        value = _integerOf(text)
        return Integer(-value if negative else value)

    def _named(self, token: Token) -> Operand:
        name = token.text
        if token.kind != "word":
            raise PtxError(token.line, f"expected an operand, found '{name}'")
        if name == "_":
            return Sink()
        for scope in reversed(self._scopes):
            kind = scope.registerType(name)
            if kind is not None:
                return self._register(name, kind, scope)
            if name in scope.variables:
                return Symbol(scope.variables[name])
            if name in scope.labels:
                return Symbol(scope.labels[name])
        if name.startswith("%"):
            return Special(name)
        return Symbol(name)

    def _register(self, name: str, kind: Type, scope: _Scope) -> Register:
        assert self._function
        # Those that nvcc names (%r12) keep their name; others must not meet a parameter's or a keyword of C++.
        spelled = name[1:] if _USUAL_REGISTER.match(name) else "x_" + name.translate(_NOT_IN_CPP)
        return self._function.registers.setdefault(spelled + scope.suffix, Register(spelled + scope.suffix, kind))


def _integerOf(text: str) -> int:
    digits = text.rstrip("U")
    if len(digits) > 1 and digits[0] == "0" and digits.isdigit():
        return int(digits, 8)
    return int(digits, 0)


def parse(text: str) -> Module:
    return Parser(text).parse()
