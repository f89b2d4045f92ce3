"""Functions compiled by Numba as targets of XLA's foreign function interface: no copies, no Python, no lock.

XLA hands its handlers a call frame (`xla/ffi/api/c_api.h` of jaxlib: a chain of plain structures whose layout is stable within
the major version 0). A frame and what it points to are read here as arrays of 64-bit words.

The work of a call is cut into items. The calling thread takes one after the other; so do XLA's own threads, as far as they have
time for it. Nobody waits for a thread that has not begun, so a busy machine makes a call slower by what it takes away, and
calls inside calls cannot block one another.

What is compiled from here is kept on disk with the kernels that use it; Numba looks at the kernel's own file only to see
whether it changed, so touch that too after a change here.
"""

# Numba has types of its own.
# pyright: reportArgumentType=false, reportCallIssue=false, reportPrivateImportUsage=false, reportReturnType=false

import ctypes
from typing import Any

import jax
import llvmlite.binding
import numpy as np
from llvmlite import ir
from numba import carray, njit, types
from numba.core import cgutils
from numba.extending import intrinsic

__all__ = [
    "HANDLER",
    "TASK",
    "address_of",
    "begin",
    "buffers",
    "claim",
    "dimension",
    "end",
    "finish",
    "first_result",
    "floats",
    "integers",
    "is_question",
    "let_go",
    "name_task",
    "register",
]

# Words of XLA_FFI_CallFrame and of what hangs on it
EXTENSION, API, CONTEXT, ARGUMENT_COUNT, ARGUMENTS, RESULT_COUNT, RESULTS = 1, 2, 3, 7, 9, 12, 14
METADATA_EXTENSION, METADATA, METADATA_VERSION = 1, 3, 3
API_VERSION, SCHEDULE, THREADS = 4, 17, 18  # of XLA_FFI_Api; the last two are known to be there in version 0.3
VERSION_0_3 = 3 << 32  # the major version is the lower half of the word
DATA, RANK, DIMENSIONS = 3, 4, 5  # of XLA_FFI_Buffer
# Words of the block that the threads of a call share
NEXT, FINISHED, HOLDERS, ITEMS, FRAME, BLOCK_WORDS = range(6)

_allocate = types.ExternalFunction("malloc", types.intp(types.intp))
_free = types.ExternalFunction("free", types.void(types.intp))
_yield = types.ExternalFunction("sched_yield", types.intc())
TASK = types.void(types.intp)  # of a block
HANDLER = types.intp(types.intp)  # of a frame


@intrinsic
def _pointer(typing_context: Any, address: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], cgutils.voidptr_t)

    return types.voidptr(address), generate


@intrinsic
def _fetch_add(typing_context: Any, address: Any, amount: Any) -> Any:
    """Add to a word that threads share; returns what it was before."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        word = builder.inttoptr(args[0], ir.IntType(64).as_pointer())
        return builder.atomic_rmw("add", word, args[1], "seq_cst")

    return types.int64(types.int64, types.int64), generate


@intrinsic
def _call(typing_context: Any, function: Any, argument: Any) -> Any:
    """Call the C function of one word at this address."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(ir.IntType(64), [ir.IntType(64)])
        return builder.call(builder.inttoptr(args[0], kind.as_pointer()), [args[1]])

    return types.int64(types.int64, types.int64), generate


@njit
def _words(address: int, count: int) -> np.ndarray:
    return carray(_pointer(address), (count,), np.int64)


@njit
def dimension(buffer: int, place: int) -> int:
    """Size of a buffer's dimension, counted from its last one: place 1 is the last."""
    words = _words(buffer, 6)
    return _words(words[DIMENSIONS], words[RANK])[words[RANK] - place]


@njit
def floats(buffer: int, shape: Any) -> np.ndarray:
    """The float32 values of a buffer, which the caller knows to be so many; nothing is copied."""
    return carray(_pointer(_words(buffer, 6)[DATA]), shape, np.float32)


@njit
def integers(buffer: int, shape: Any) -> np.ndarray:
    """The int32 values of a buffer."""
    return carray(_pointer(_words(buffer, 6)[DATA]), shape, np.int32)


@njit
def _ask_for_help(frame: np.ndarray, task: int, block: np.ndarray) -> None:
    """Hand the block to as many of XLA's threads as there are items for."""
    if _words(frame[API], 5)[API_VERSION] != VERSION_0_3:
        return
    api = _words(frame[API], 19)
    answer, request = np.zeros(1, np.int64), np.zeros(5, np.int64)
    request[0], request[2], request[3] = 32, frame[CONTEXT], answer.ctypes.data
    if _call(api[THREADS], request.ctypes.data) != 0:
        return
    request[0], request[3], request[4] = 40, task, block.ctypes.data
    for _ in range(min(answer[0], block[ITEMS]) - 1):
        _fetch_add(block.ctypes.data + 8 * HOLDERS, 1)
        if _call(api[SCHEDULE], request.ctypes.data) != 0:
            _fetch_add(block.ctypes.data + 8 * HOLDERS, -1)
            return


@njit
def claim(block: int) -> int:
    """The next item that nobody works on yet, or -1; after that, what the call was given may be gone."""
    item = _fetch_add(block + 8 * NEXT, 1)
    return item if item < _words(block, BLOCK_WORDS)[ITEMS] else -1


@njit
def buffers(block: int) -> tuple[np.ndarray, np.ndarray]:
    """Arguments and results of the call; only for who holds an item of it."""
    frame = _words(_words(block, BLOCK_WORDS)[FRAME], 15)
    return _words(frame[ARGUMENTS], frame[ARGUMENT_COUNT]), _words(frame[RESULTS], frame[RESULT_COUNT])


@njit
def finish(block: int) -> None:
    """An item is done."""
    _fetch_add(block + 8 * FINISHED, 1)


@njit
def let_go(block: int) -> None:
    """A thread does not need the block any more; the last one frees it."""
    if _fetch_add(block + 8 * HOLDERS, -1) == 1:
        _free(block)


@njit
def begin(address: int, items: int, task: int) -> int:
    """The block of the call with this frame; XLA's threads may be at work on it already."""
    place = _allocate(8 * BLOCK_WORDS)
    block = _words(place, BLOCK_WORDS)
    block[:] = 0
    block[HOLDERS], block[FRAME], block[ITEMS] = 1, address, items
    _ask_for_help(_words(address, 15), task, block)
    return place


@njit
def end(block: int) -> None:
    """Wait for those that still work on an item."""
    while _fetch_add(block + 8 * FINISHED, 0) < _words(block, BLOCK_WORDS)[ITEMS]:
        _yield()
    let_go(block)


@njit
def is_question(address: int) -> bool:
    """Whether a call only asks for the version: then it is answered with the caller's own, which has all that is used."""
    frame = _words(address, 15)
    if frame[EXTENSION] == 0:
        return False
    extension = _words(frame[EXTENSION], 4)
    if extension[1] & 0xFFFFFFFF != METADATA_EXTENSION:
        return False
    _words(extension[METADATA], 5)[METADATA_VERSION] = _words(frame[API], 5)[API_VERSION]
    return True


@njit
def first_result(address: int) -> int:
    """The buffer of a call's first result."""
    return _words(_words(address, 15)[RESULTS], 1)[0]


def address_of(symbol: str) -> Any:
    """A compiled function that gives the address of a named function: see `name_task`."""

    @intrinsic
    def address(typing_context: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            kind = ir.FunctionType(ir.VoidType(), [ir.IntType(64)])
            function = cgutils.get_or_insert_function(builder.module, kind, symbol)
            return builder.ptrtoint(function, ir.IntType(64))

        return types.int64(), generate

    return address


def name_task(symbol: str, task: Any) -> None:
    """Give a compiled C function a name, by which code from the cache finds it wherever it is in this process."""
    llvmlite.binding.add_symbol(symbol, task.address)


def register(name: str, handler: Any) -> None:
    """Make a compiled C function known to XLA as the CPU target `name` of `jax.ffi.ffi_call`."""
    jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(ctypes.c_void_p(handler.address)), platform="cpu")
