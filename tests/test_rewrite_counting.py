"""What may be done with a list of flags that are edited, and what leaves the file to the guard."""

from __future__ import annotations

import pytest

from archpatch.arch.arch import ArchRequest
from archpatch.arch.selection import Policy
from archpatch.rewrite.outcome import Refused
from archpatch.rewrite.source import rewrite_source

A = '"-gencode=arch=compute_80,code=sm_80"'
B = '"-gencode=arch=compute_90,code=sm_90"'
BOTH = f"[{A}, {B}]"


def guarded(text: str, request: str = "9.0") -> set[str]:
    """Return the shapes that the guard is written for."""
    outcome = rewrite_source(f"{text}\n".encode(), ArchRequest.parse(request), policy=Policy())
    assert not isinstance(outcome, Refused)
    return {source.shape for source in outcome.sources}


#: Uses of the list `f` in which no place and no number matters.
KEEPS = [
    "g = f + ['x']",
    "g = ['x', *f]",
    "g = f[:]",
    "g = list(f)",
    "args = {'nvcc': f, 'cxx': cxx[1:]}\nargs['nvcc'] += ['x']\nCUDAExtension('a', [], extra_compile_args=args)",
    "for x in f:\n    g.append(x)",
    "for x in f:\n    if x.startswith('-'):\n        g += [x]\n    else:\n        pass",
    "g = [x for x in f if x != '-O3']",
    "print(f, *f)",
    "if '-O3' in f: pass",
    "g = ' '.join(f)\nh = g.split()",
    "g = f\ng.append('x')",
    (
        "def add(l, n):\n"
        "    return l + ['-t', n]\n"
        "args = dict(nvcc=add(f, '4'))\n"
        "setup(ext_modules=[CUDAExtension('a', [], extra_compile_args=args)])"
    ),
    (
        "class B(build_ext):\n"
        "    def build_extensions(self):\n"
        "        for e in self.extensions:\n"
        "            e.extra_compile_args['nvcc'].append('x')\n"
        "            for k, v in e.extra_compile_args.items():\n"
        "                v.extend(['y'])\n"
        "Extension('a', [], extra_compile_args={'nvcc': f})"
    ),
    "import os\nsubprocess.run(['nvcc', *f])",
    "any(x.startswith('-g') for x in f)",
    "g = tuple(f)",
    "from itertools import chain\ng = list(chain(f, ['x']))",
    "f.remove('-O3')",
    "f.insert(0, 'x')",
    "def make(name, **kw):\n    return CUDAExtension(name, [], **kw)\nmake('a', extra_compile_args={'nvcc': f})",
    "assert f is not None",
    "a, b = [], f\na[0:1]",
    "self.f = f\ng = self.f",
    "del f",
    "isinstance(f, list)",
    "import copy\ng = copy.deepcopy(f)",
    "f.clear()",
    "g = {'nvcc': f}.get('nvcc')",
    "g = d.setdefault('nvcc', f)",
    "g = sum([f, f], [])",
    "n = len(g)",
    "for i, args in enumerate([{'nvcc': f}]):\n    Extension('a', [], extra_compile_args=args)",
    "with open('x') as fd:\n    v = fd.read()[1:]",
    "import logging\nlogging.info('%s', f)",
    "import subprocess\nsubprocess.check_call(['nvcc', *f])",
    "setup(ext_modules=[CUDAExtension('a', [], extra_compile_args=f)])",
    "for x in f:\n    g.append(x)\ng = [x for x in g]",
]


@pytest.mark.parametrize("use", KEEPS)
def test_a_list_may_be_used_as_a_whole(use: str) -> None:
    assert guarded(f"f = {BOTH}\n{use}") == set()


#: Uses of the list `f` that a flag less would change, or that do with it nobody knows what.
COUNTS = [
    "import helper as print\nprint(f)",
    "def f2():\n    global f\n    return f\nf2()[0]",
    "class A:\n    fl = f\n    @property\n    def p(self): return self.fl\nA().p[0]",
    "g = lambda: f\ng()[0]",
    "h = [f]\nh[0][0]",
    "h = [f]\nh[0].pop()",
    "h = {'a': {'b': f}}\nh['a']['b'][0]",
    "h = {'a': f}\nfor k in h:\n    h[k][0]",
    "h = {'a': f}\nx, = h.values()\nx[0]",
    "h = {'a': f}\n[v[0] for v in h.values()]",
    "h = {'a': f}\n{k: v[1:] for k, v in h.items()}",
    "g = f.copy()\ng[0]",
    "import copy\ng = copy.copy(f)\ng[0]",
    "g = (f + ['x'])[1:]",
    "g = [*f, 'x'][0]",
    "g = sum([f], [])[0]",
    "a, b = [1], f\nb[0]",
    "(a, b), c = (1, f), 2\nb[0]",
    "with open(f) as g: pass",
    "try: g = f\nexcept E: pass\nelse: g[0]",
    "g = f\nwhile g: pass",
    "g = not f",
    "g = [x for x in h if f]",
    "g = f if x else h\ng[0]",
    "for x in f:\n    if x in s: continue\n    s.append(x)\n    n = x",
    "for i, x in enumerate(f): pass",
    "for x in f[:]: n += 1",
    "for x in reversed(f): g.append(x)",
    "for x in f: pass\nelse: y = x",
    "[g.append(1) for x in f]",
    "dict(zip(f, f))",
    "{x: 1 for x in f}",
    "{x for x in f}",
    "set(f)",
    "str(f)[2:]",
    "repr(f)",
    "f.extend(f[:1])",
    "f += f[-1:]",
    "g = max(f, key=len)",
    "def h(a, *, b): return b[0]\nh(1, b=f)",
    "def h(a, b=None): return b[0]\nh(1, f)",
    "def h(*a, **k): return k['b'][0]\nh(1, b=f)",
    "class E(Extension):\n    def __init__(self, l):\n        l = l[1:]\n        super().__init__('a')\nE(f)",
    "e = CUDAExtension('a', [], extra_compile_args={'n': f})\ng = e.extra_compile_args['n'][1:]",
    "ext = Extension('a', [], **{'extra_compile_args': f})\next.extra_compile_args[0]",
    "ext = Extension('a', [], **dict(extra_compile_args=f))\ndel ext.extra_compile_args[0]",
    "vars(x)['f'][0]",
    "x.__dict__['f'][0]",
    "import operator\noperator.itemgetter(0)(f)",
    "from functools import reduce\nreduce(lambda a, b: a + [b], f, [])",
    "g = f.__getitem__(0)",
    "f.__delitem__(0)",
    "f.__iadd__(['x'])",
    "list.pop(f)",
    "del f[:1]",
    "f[:] = f[1:]",
    "f[1:1] = ['x']",
    "n = sum(map(len, f))",
    "g = iter(f)\nnext(g)",
    "assert len(f) == 2",
    "assert f",
    "print(f.pop())",
    "print('%d' % len(f))",
    "raise SystemExit(len(f))",
    "def d(x=len(f)): pass",
    "@deco(f)\ndef d(): pass",
    "class C(meta(f)): pass",
    "class C(metaclass=f[0]): pass",
    "async def q():\n    await w(f)",
    "g = f\ndef h():\n    yield from g",
    "for x in f:\n    g.append(x)\n    if len(g) > 1: break",
    "for x in f:\n    if not g: g.append(x)",
    "g = f'{f[0]}'",
    "x: int = f[0]",
    "x: f[0]",
    "type(f)(f[1:])",
    "g = [x for x in f if (n := n + 1) > 1]",
    "it = iter(range(9))\n[x for x in f if next(it)]",
    "import itertools\n[x for x in f if next(itertools.count())]",
    "c = itertools.count()\ng = [x for x in f if c.__next__()]",
    "def nth():\n    n.append(1)\n    return len(n)\ng = [x for x in f if nth() > 1]",
    "def nth(x):\n    n.append(x)\n    return len(n) > 1\ng = [x for x in f if nth(x)]",
    "def nth(x):\n    n.append(x)\n    return len(n) > 1\ng = list(filter(nth, f))",
    "any(n.append(1) for x in f)",
    "g = ', '.join(x for x in f)\ng[1:]",
    "g = ' '.join(f).partition(' ')",
    "g = ' '.join(f).split()[1:]",
    "g = len(' '.join(f))",
    "import re\nre.sub('a', 'b', ' '.join(f), 1)",
    "' '.join(f).replace('-g', '', 1)",
    "' '.join(f).strip('-g')",
    "f = f[1:]",
    "f, g = f[:1], f[1:]",
    "if len(f): pass",
    "g = 1 if len(f) > 1 else 0",
    "g = f and f[0]",
    "match len(f):\n    case 2: pass",
    "lambda: f[0]",
    "(lambda q: q[0])(f)",
    "g = f[0]",
    "first, *g = f",
    "g, h = f",
    "enumerate(f)",
    "len(f)",
    "from itertools import islice\nislice(f, 1, None)",
    "def last(l): return l[1:]\nlast(f)",
    "def last(l): return l\nlast(f)[1:]",
    "last = lambda l: l[1:]\nlast(f)",
    "g = f\ng[0] = 'x'",
    "g = [*f]\ndel g[1]",
    "f.pop()",
    "if f: pass",
    "while f: f = f[1:]",
    "g = f or ['x']",
    "g = 1 if f else 2",
    "f.reverse()",
    "f.sort()",
    "f.index('-O3')",
    "sorted(f)",
    "zip(f, f)",
    "f == g",
    "f.insert(1, 'x')",
    "import helper\nhelper.make(f)",
    "g = {'nvcc': f}\ng['nvcc'][0]",
    "for x in f:\n    n += 1",
    "for x in f:\n    g.append(x)\nx",
    "for x in f:\n    g.append('y')",
    "for x in f:\n    g.append(x)\n    break",
    "[1 for x in f]",
    "sum(1 for x in f)",
    "[y for x in f]",
    "next(x for x in f)",
    "iter(f)",
    "print(f[1])",
    "match f:\n    case [a, *b]: pass",
    "self.f = f\nself.f[2:]",
    "CUDAExtension('a', [], extra_compile_args={'nvcc': f})\nfor e in exts:\n    e.extra_compile_args['nvcc'][0]",
    "CUDAExtension('a', [], extra_compile_args=f)\ne.extra_compile_args.pop()",
    "g = ' '.join(f)\ng[5:]",
    "g = ' '.join(f)\ng.split(' ', 3)",
    "globals()['f'][0]",
    "getattr(self, 'f')[0]",
    "@head\ndef get():\n    return f",
    "def get():\n    yield f",
    "def get(l=f):\n    return l[1:]",
    "g = lambda l=f: l[0]",
    "def get():\n    return f\nget()[0]",
    "def get():\n    return 1, f\na, b = get()\nb[0]",
    "g = f.append",
    "a = b = f\nb[0]",
    "(g := f)[0]",
    "f[-1:] = []",
    "del f[0]",
    "f *= 2",
    "bool(f)",
    "not f",
    "def list(x): return x[::-1]\nlist(f)",
    "class A:\n    def __init__(self, l):\n        self.x = l[0]\nA(f)",
    "NS(f=f)",
    "from more import chain\nchain(f)",
    "g = [x for x in f if next(it)]",
    "h = {'n': f}\nfor k, v in h.items():\n    v[0]",
    "def g(*a): return a[0][0]\ng(f)",
    "def g(**k): return k['z'][0]\ng(z=f)",
    "def g(z): return z[0]\ng(**{'z': f})",
    "add = f.insert\n",
    "os.path.join(*f)",
    "g = f'{f}'[2:]",
    "f.__len__()",
    "for x in ' '.join(f): pass",
    "async def g():\n    async for x in f: pass",
    "'%s %s' % f",
    "import helper\nhelper.run(f)",
    "np.sum(f)",
    "obj.list(f)",
    "from h import make\nmake(extra_compile_args=f)",
    "def get(l): return l\nget = head\nget(f)",
    "eval('f[0]')",
    "[x for x in f for x in g]",
    "import h\nh.load_flags(f)",
]


@pytest.mark.parametrize("use", COUNTS)
def test_what_goes_by_places_or_number_is_left_to_the_guard(use: str) -> None:
    assert "counted" in guarded(f"f = {BOTH}\n{use}")


#: The flags are put into a list that has another name where it is counted.
ALIASES = [
    f"f = []\ng = f\nf.append({A})\nf.append({B})\ng[0]",
    f"f = []\ng = f\ng.append({A})\ng.append({B})\nf[0]",
    f"d = {{'n': []}}\nd['n'].append({A})\nd['n'].append({B})\nd['n'][0]",
    f"d = {{'n': []}}\ng = d['n']\ng.append({A})\ng.append({B})\nd['n'][0]",
    f"g = []\nd = {{'n': g}}\nd['n'].append({A})\nd['n'].append({B})\ng[0]",
    f"def add(l):\n    l.append({A})\n    l.append({B})\nf = []\nadd(f)\nf[0]",
    f"def get(): return d['n']\nget().append({A})\nget().append({B})\nd['n'][0]",
    f"f = []\nf += {BOTH}\nf[0]",
    f"g = []\nf = g if x else h\nf += {BOTH}\nh[0]",
    f"g = []\nf, h = g, 1\nf += {BOTH}\ng[0]",
    f"for g in [a, b]:\n    g += {BOTH}\na[0]",
    f"d = {{}}\nfor k, v in d.items():\n    v += {BOTH}\nd['x'][0]",
    f"d = {{}}\nd.setdefault('n', []).extend({BOTH})\nd['n'][0]",
    f"d = {{}}\nd['n'] = {BOTH}\nd['n'][0]",
    f"d = {{}}\nd.update({{'n': {BOTH}}})\nd['n'][0]",
    f"d = {{}}\nd.update(n={BOTH})\nd['n'][0]",
    f"e.extra_compile_args['nvcc'] += {BOTH}\nx.extra_compile_args['nvcc'][0]",
    f"f = ('-gencode=' + 'arch=compute_80,code=sm_80', {B})\nf[0]",
    f"len(x + {BOTH})",
    f"f = []\nf.insert(0, {A}); f.insert(0, {B}); f[0]",
    f"for i, g in enumerate([a, b]):\n    g += {BOTH}\na[0]",
    f"for g in list(d.values()):\n    g += {BOTH}\nd['n'][0]",
    f"def get(): return a, 1\ng, h = get()\ng += {BOTH}\na[0]",
    f"g = d.get('n')\ng += {BOTH}\nd['n'][0]",
    f"a = b = []\na += {BOTH}\nb[0]",
    f"b = []\na = (b, 1)\na[0].append({A})\na[0].append({B})\nb[0]",
    "f = '-gencode=arch=compute_80,code=sm_80 -gencode=arch=compute_90,code=sm_90'.split()\nf[0]",
    "f = ('-gencode=' + 'arch=compute_80,code=sm_80', '-gencode=arch=compute_90,code=sm_90')\nf[0]",
    "f = ['-arch', 'sm_90']\nf[1]",
]


@pytest.mark.parametrize("text", ALIASES)
def test_a_list_is_counted_by_whatever_name_it_goes(text: str) -> None:
    assert guarded(text) == {"counted"}


@pytest.mark.parametrize("receiver", ['a["f"]', "a['f']", "self.f", "(f)", "a.b.f"])
def test_a_list_is_counted_however_it_is_spelled(receiver: str) -> None:
    text = f"{receiver}.insert(0, {A})\n{receiver}.insert(0, {B})\n"

    assert guarded(text + f"del {receiver}[0]") == {"counted"}
    assert guarded(text + f"{receiver}.append(0)") == set()


def test_a_list_that_is_not_edited_may_be_counted() -> None:
    assert guarded(f"f = [{A}]\ng = [{A}, {B}]\nlen(f)", "8.0") == set()
    assert guarded(f"f = {BOTH}\nlen(f)", "8.0;9.0") == set()


def test_where_archs_are_chosen_together_a_list_that_stays_may_not_be_counted() -> None:
    assert guarded(f"f = {BOTH}\nlen(f)", "8.0;9.0+PTX") == {"counted"}


def test_the_line_of_the_use_is_named() -> None:
    outcome = rewrite_source(f"f = {BOTH}\n\nlen(\n    f)\n".encode(), ArchRequest.parse("9.0"), policy=Policy())

    assert not isinstance(outcome, Refused)
    assert [(source.line, source.shape) for source in outcome.sources] == [(4, "counted")]
