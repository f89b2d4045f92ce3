"""Compiled programs that settings share: runs that differ only in numbers are compiled once.

A traced function holds its settings (step sizes, strengths, budgets, ratios) as numbers in the program, so XLA would compile it
again for each setting. This module takes these numbers out and passes them as arguments. Two runs whose programs then have the
same text share one executable: within a process, and between processes through JAX's cache on disk. Everything that decides the
shape of the work (sizes, numbers of steps, which algorithm) stays in the program.

The module reads and rewrites jaxprs, whose form JAX may change. `FENCE` therefore names the versions that it knows. With
another version, or with FEDPDM_SHARED_PROGRAMS=0, every program is compiled separately: the results are the same.
"""

import hashlib
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var

from fedpdm.native.fence import Fence

__all__ = ["FENCE", "Program", "shared_program"]

FENCE = Fence(
    "Sharing compiled programs", "FEDPDM_SHARED_PROGRAMS", "jax", (0, 8), (0, 10), "every setting is compiled separately"
)
_INLINED = ("jit", "pjit", "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call", "remat")
_MOST = 64  # executables in memory
# jaxlib 0.10 hands sums to a library, whose inputs it first writes to memory. Steps on small batches are sums of products of
# gathered rows: fused into one loop they take a third of the time.
_FUSED_SUMS = {"xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT"}
_compiled: dict[tuple[Any, ...], Any] = {}


class Program(NamedTuple):
    """A compiled function of the arguments that it was traced with."""

    call: Callable[..., Any]
    seconds: float  # spent on tracing and compiling
    compiled: bool  # False: the executable of an earlier program is used


def shared_program(
    function: Callable[..., Any], args: tuple[Any, ...], donate: tuple[int, ...] = (), fuse_sums: bool = False
) -> Program:
    """Compile `function` for arguments like `args`, or take the executable of a program that differs only in numbers.

    Parameters
    ----------
    function : callable
        A function that JAX can trace.
    args : tuple
        Arguments of the shapes and types of later calls.
    donate : tuple of int
        Positions of arguments whose memory the call may reuse.
    fuse_sums : bool
        Whether sums are compiled together with what they add up, on a CPU.

    Returns
    -------
    Program
        The compiled function, with the time that it took.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> programs = [shared_program(lambda x, by=by: jnp.sum(by * x), (jnp.ones(3),)) for by in (2.0, 5.0)]
    >>> [float(program.call(jnp.ones(3))) for program in programs], programs[1].compiled
    ([6.0, 15.0], False)
    """
    began = time.perf_counter()
    if not FENCE.is_open():
        plain = _compile(jax.jit(function, donate_argnums=donate).lower(*args), fuse_sums)
        return Program(plain, time.perf_counter() - began, compiled=True)
    closed, shapes = jax.make_jaxpr(function, return_shape=True)(*args)
    result = jax.tree.structure(shapes)
    numbers = list(_numbers(closed))

    def without_numbers(numbers: list[Any], *args: Any) -> Any:
        return jax.tree.unflatten(result, _evaluate(closed, iter(numbers), *jax.tree.leaves(args)))

    # the digest names neither the types of states nor how thoroughly JAX compiles, which decides the last bits
    thorough = jax.config.read("jax_disable_most_optimizations"), fuse_sums
    key = (_digest(closed), donate, jax.tree.structure(args), result, thorough)
    known = key in _compiled
    if known:
        executable = _compiled.pop(key)
    else:
        jitted = jax.jit(without_numbers, donate_argnums=tuple(i + 1 for i in donate))
        executable = _compile(jitted.lower(numbers, *args), fuse_sums)
    _compiled[key] = executable  # the least recently used one is dropped first
    if len(_compiled) > _MOST:
        del _compiled[next(iter(_compiled))]
    return Program(partial(executable, numbers), time.perf_counter() - began, not known)


def _compile(lowered: Any, fuse_sums: bool) -> Any:
    if fuse_sums and jax.default_backend() == "cpu":
        try:
            return lowered.compile(compiler_options=_FUSED_SUMS)
        except (ValueError, RuntimeError):  # a jaxlib without this option
            pass
    return lowered.compile()


def _digest(closed: ClosedJaxpr) -> str:
    """Name a program without its numbers. Programs of one name become the same program when `_evaluate` takes them out."""
    return hashlib.sha256("\n".join(_outline(closed)).encode()).hexdigest()


def _outline(closed: ClosedJaxpr) -> Iterator[str]:
    """Yield a line per equation, with everything that decides the program but for its numbers."""
    jaxpr, places = closed.jaxpr, itertools.count()
    names: dict[Var, str] = {}

    def define(variables: Sequence[Any]) -> str:
        names.update((v, f"v{next(places)}:{v.aval.str_short(short_dtypes=True)}") for v in variables)
        return " ".join(names[v] for v in variables)

    def use(atom: Any) -> str:
        if _is_number(atom):
            return f"number:{atom.aval.dtype}"
        return f"{atom.val}:{atom.aval.str_short(short_dtypes=True)}" if isinstance(atom, Literal) else names[atom]

    yield f"{define(jaxpr.constvars)}; {define(jaxpr.invars)}"
    for eqn in jaxpr.eqns:
        own = {} if eqn.primitive.name in _INLINED else _without_programs(eqn)
        yield f"{eqn.primitive.name} {' '.join(map(use, eqn.invars))} {own} -> {define(eqn.outvars)}"
        for inner in _branches(eqn):
            yield from _outline(inner)
    # `_evaluate` leaves numbers that are results as they are
    yield " ".join(names[atom] if isinstance(atom, Var) else f"{atom.val}:{atom.aval}" for atom in jaxpr.outvars)


def _without_programs(eqn: JaxprEqn) -> dict[str, Any]:
    """Return an equation's parameters; those programs that `_branches` returns are not among them."""
    inside = ("cond_jaxpr", "body_jaxpr", "branches", "jaxpr", "call_jaxpr") if _branches(eqn) else ()
    return {name: value for name, value in eqn.params.items() if name not in inside}


def _is_number(atom: Any) -> bool:
    return isinstance(atom, Literal) and np.ndim(atom.val) == 0 and atom.aval.dtype in (np.float32, np.int32)  # pyright: ignore


def _branches(eqn: JaxprEqn) -> list[ClosedJaxpr]:
    """Return the programs inside an equation, in the order of `_evaluate`."""
    if eqn.primitive.name == "while":
        return [eqn.params["cond_jaxpr"], eqn.params["body_jaxpr"]]
    if eqn.primitive.name == "cond":
        return list(eqn.params["branches"])
    if eqn.primitive.name in (*_INLINED, "scan"):
        return [_closed(eqn.params["jaxpr" if "jaxpr" in eqn.params else "call_jaxpr"])]
    return []


def _closed(jaxpr: Any) -> ClosedJaxpr:
    return ClosedJaxpr(jaxpr, []) if isinstance(jaxpr, Jaxpr) else jaxpr


def _numbers(closed: ClosedJaxpr) -> Iterator[Any]:
    """Yield the numbers of a program, captured arrays and scalar literals, in the order of `_evaluate`."""
    yield from closed.consts
    for eqn in closed.jaxpr.eqns:
        yield from (np.asarray(atom.val, atom.aval.dtype) for atom in eqn.invars if _is_number(atom))  # pyright: ignore
        for inner in _branches(eqn):
            yield from _numbers(inner)


def _evaluate(closed: ClosedJaxpr, numbers: Iterator[Any], *args: Any) -> list[Any]:
    """Run a program on arguments; `numbers` gives back, one by one, the numbers that `_numbers` took out."""
    jaxpr = closed.jaxpr
    values: dict[Var, Any] = dict(zip(jaxpr.constvars, [next(numbers) for _ in closed.consts], strict=True))
    values |= dict(zip(jaxpr.invars, args, strict=True))

    def read(atom: Any) -> Any:
        if _is_number(atom):
            return next(numbers)
        return atom.val if isinstance(atom, Literal) else values[atom]

    for eqn in jaxpr.eqns:
        operands = [read(atom) for atom in eqn.invars]
        results = _apply(eqn, operands, numbers)
        values |= dict(zip(eqn.outvars, results, strict=True))
    return [values[atom] if isinstance(atom, Var) else atom.val for atom in jaxpr.outvars]


def _apply(eqn: JaxprEqn, operands: list[Any], numbers: Iterator[Any]) -> list[Any]:
    name, params = eqn.primitive.name, dict(eqn.params)
    if name in _INLINED:
        return _evaluate(_branches(eqn)[0], numbers, *operands)
    inner = _branches(eqn)
    own = [[next(numbers) for _ in _numbers(closed)] for closed in inner]
    if name == "while":
        first = params["cond_nconsts"]
        operands = [*own[0], *operands[:first], *own[1], *operands[first:]]
        params["cond_jaxpr"], params["body_jaxpr"] = (_lifted(closed, i, own) for i, closed in enumerate(inner))
        params["cond_nconsts"] += len(own[0])
        params["body_nconsts"] += len(own[1])
    elif name == "cond":
        # Branches take the same operands, so each gets the numbers of all.
        flat = [number for part in own for number in part]
        operands = [operands[0], *flat, *operands[1:]]
        params["branches"] = tuple(_lifted(closed, i, own, everything=True) for i, closed in enumerate(inner))
    elif name == "scan":
        operands = [*own[0], *operands]
        params["jaxpr"] = _lifted(inner[0], 0, own)
        params["num_consts"] += len(own[0])
        if "linear" in params:
            params["linear"] = (False,) * len(own[0]) + tuple(params["linear"])
    bound = eqn.primitive.get_bind_params(params)
    if isinstance(bound, tuple):  # JAX before 0.10
        operands, bound = [*bound[0], *operands], bound[1]
    results = eqn.primitive.bind(*operands, **bound)
    return results if eqn.primitive.multiple_results else [results]


def _lifted(closed: ClosedJaxpr, place: int, own: list[list[Any]], everything: bool = False) -> ClosedJaxpr:
    """Return the program with its numbers as first arguments; with `everything`, the numbers of all programs beside it too."""
    before = sum(len(part) for part in own[:place]) if everything else 0
    count = sum(len(part) for part in own) if everything else len(own[place])
    shapes = [jax.ShapeDtypeStruct(np.shape(n), n.dtype) for part in (own if everything else [own[place]]) for n in part]

    def function(*args: Any) -> list[Any]:
        return _evaluate(closed, iter(args[before : before + len(own[place])]), *args[count:])

    own_shapes = [jax.ShapeDtypeStruct(a.shape, a.dtype, weak_type=a.weak_type) for a in closed.in_avals]  # pyright: ignore
    return jax.make_jaxpr(function)(*shapes, *own_shapes)
